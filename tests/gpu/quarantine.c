// SPDX-License-Identifier: Apache-2.0
// Finds objects of Python that lose one reference too many: their memory is written after it was freed, which ends in a crash
// of some later, harmless line. tests/gpu/lost_references.sh runs tests with it.
//
// Freed blocks of up to 256 bytes wait in a ring before they go back to Python. A reference count in them is set to a number
// that no decrement makes 0. A block that has changed meanwhile is reported with its type, where that is still known.
//
// Thread safety: Python's allocator is called with the GIL held.
#include <Python.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

enum { kBlocks = 1 << 19, kCompared = 64, kLargest = 256, kHeader = 16, kMaxReports = 40 };
static const uint64_t kMark = 0x5ca1ab1edeadfa11u;
static const uint64_t kSentinel = 0x04000000;

typedef struct {
  unsigned char* block;
  size_t size;
  unsigned char content[kCompared];
} Freed;

static Freed* g_ring;
static size_t g_next;
static PyMemAllocatorEx g_python;
static int g_reports, g_log = STDERR_FILENO;

static uint64_t* mark_of(void* block) { return (uint64_t*)((unsigned char*)block - 8); }
static size_t* size_of(void* block) { return (size_t*)((unsigned char*)block - kHeader); }
static int is_ours(void* block) { return *mark_of(block) == (kMark ^ (uint64_t)(uintptr_t)block); }
static size_t compared(const Freed* freed) { return freed->size < kCompared ? freed->size : kCompared; }

static void* entered(unsigned char* memory, size_t size) {
  if (!memory) return NULL;
  unsigned char* const block = memory + kHeader;
  *size_of(block) = size;
  *mark_of(block) = kMark ^ (uint64_t)(uintptr_t)block;
  return block;
}

/// The name of a type, if the word is the address of one: asked of the kernel, which crashes nothing.
static void print_type(uintptr_t word, const char* where) {
  int ends[2];
  char name[64] = {0};
  const PyTypeObject* const type = (const PyTypeObject*)word;
  if (word == 0 || pipe(ends) != 0) return;
  if (write(ends[1], &type->tp_name, sizeof(char*)) == sizeof(char*) && write(ends[1], type->tp_name, 32) == 32) {
    char* text = NULL;
    if (read(ends[0], &text, sizeof text) == sizeof text && read(ends[0], name, 32) == 32)
      dprintf(g_log, "  type %s: %s\n", where, name);
  }
  close(ends[0]);
  close(ends[1]);
}

static void look_at(Freed* freed) {
  if (!freed->block || g_reports >= kMaxReports) return;
  if (memcmp(freed->block, freed->content, compared(freed)) == 0) return;
  ++g_reports;
  dprintf(g_log, "written after it was freed: %zu bytes at %p\n", freed->size, (void*)freed->block);
  for (size_t at = 0; at + 8 <= compared(freed); at += 8) {
    const uint64_t before = *(uint64_t*)(freed->content + at), now = *(uint64_t*)(freed->block + at);
    if (before != now) dprintf(g_log, "  at %zu: %#lx is %#lx\n", at, (unsigned long)before, (unsigned long)now);
  }
  if (freed->size >= 16) print_type(*(uintptr_t*)(freed->content + 8), "without a header");
  if (freed->size >= 28) dprintf(g_log, "  an int would be %u\n", *(uint32_t*)(freed->content + 24));
  if (freed->size >= 32) print_type(*(uintptr_t*)(freed->content + 24), "behind the collector's header");
  if (freed->size >= 48) print_type(*(uintptr_t*)(freed->content + 40), "behind the header and a dict");
}

static void release(void* block) {
  *mark_of(block) = 0;
  g_python.free(g_python.ctx, (unsigned char*)block - kHeader);
}

static void* allocate(void* context, size_t size) {
  (void)context;
  return entered(g_python.malloc(g_python.ctx, size + kHeader), size);
}

static void* allocate_zeroed(void* context, size_t count, size_t size) {
  (void)context;
  if (count != 0 && size > (SIZE_MAX - kHeader) / count) return NULL;
  return entered(g_python.calloc(g_python.ctx, 1, count * size + kHeader), count * size);
}

static void set_sentinels(uint64_t* words, size_t size) {
  for (size_t word = 0; word <= 4; word += 2)
    if (size >= (word + 2) * 8 && words[word] == 0) words[word] = kSentinel;
}

static void drop(void* context, void* block) {
  (void)context;
  if (!block) return;
  if (!is_ours(block)) {
    g_python.free(g_python.ctx, block);
    return;
  }
  if (*size_of(block) > kLargest) {
    release(block);
    return;
  }
  Freed* const place = &g_ring[g_next++ % kBlocks];
  look_at(place);
  if (place->block) release(place->block);
  place->block = block;
  place->size = *size_of(block);
  set_sentinels((uint64_t*)block, place->size);
  memcpy(place->content, block, compared(place));
}

static void* change(void* context, void* block, size_t size) {
  if (!block) return allocate(context, size);
  if (!is_ours(block)) return g_python.realloc(g_python.ctx, block, size);
  void* const made = allocate(context, size);
  if (!made) return NULL;
  memcpy(made, block, *size_of(block) < size ? *size_of(block) : size);
  drop(context, block);
  return made;
}

static PyObject* sweep(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  const int before = g_reports;
  for (size_t i = 0; i < kBlocks; ++i) {
    look_at(&g_ring[i]);
    if (g_ring[i].block) memcpy(g_ring[i].content, g_ring[i].block, compared(&g_ring[i]));
  }
  return PyLong_FromLong(g_reports - before);
}

static PyMethodDef g_functions[] = {
    {"sweep", sweep, METH_NOARGS, "Looks at all freed blocks; how many had changed."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef g_module = {PyModuleDef_HEAD_INIT, "quarantine", NULL, -1, g_functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_quarantine(void) {
  const char* const file = getenv("QUARANTINE_LOG");
  if (file) g_log = open(file, O_CREAT | O_WRONLY | O_APPEND, 0644);
  g_ring = calloc(kBlocks, sizeof *g_ring);
  if (!g_ring) return PyErr_NoMemory();
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &g_python);
  PyMemAllocatorEx ours = {NULL, allocate, allocate_zeroed, change, drop};
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
  return PyModule_Create(&g_module);
}
