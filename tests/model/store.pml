/* SPDX-License-Identifier: Apache-2.0
 * The versions of one object of the store while its worker is killed at any step: src/store/keeper. The guard holds the
 * descriptors and starts the next worker, which reads the index. A publisher that was not answered asks again, and a
 * reader comes back to each new worker. tests/model/run checks that each answered version is in the index once and has
 * its memory, that no version is dropped while the reader has it open, and that each mistake is found:
 *   -DRECORD_FIRST       a version is recorded before the guard has its descriptors
 *   -DANSWER_FIRST       the publisher is answered before the record is written
 *   -DSTALE_END          a new worker appends where the index ended when the guard was forked
 *   -DNO_TOKEN           a publisher that asks again gets another version
 *   -DFREED_FIRST        a version loses its descriptors before the record of that is written
 *   -DRECLAIM_EARLY      a new worker does not wait for the reader of the one before
 */
#define VERSIONS 3
#define KILLS 2
#define LOG 8

byte log[LOG];             /* the versions in the order of their records; 0 behind the last */
bool held[VERSIONS + 1];   /* the guard has the descriptors */
bool gone[VERSIONS + 1];   /* there is a record that it was dropped */
bool own[VERSIONS + 1];    /* published by the worker that runs */
byte asked = 0, answered = 0;
byte reading = 0, known_to = 0;  /* the version that is open, and the worker that knows it */
byte worker = 0, kills = 0;
byte at, last;
bool found;

inline look_for(version)
{
  at = 0; last = 0; found = false;
  do
  :: log[at] == 0 -> break
  :: else -> last = log[at]; if :: last == version -> found = true :: else fi; at++
  od
}

inline check()
{
  byte v = 1;
  do
  :: v > VERSIONS -> break
  :: else ->
    look_for(v);
    assert(v > answered || found);
    assert(!found || held[v] || gone[v]);
    v++
  od;
  at = 0;
  do
  :: log[at] == 0 || log[at + 1] == 0 -> break
  :: else -> assert(log[at] < log[at + 1]); at++
  od
}

inline recover()
{
  byte w = 1;
  worker++;
  do
  :: w > VERSIONS -> break
  :: else ->
    own[w] = false;
    look_for(w);
    if :: !found || gone[w] -> held[w] = false :: else fi;  /* its publisher asks again */
    w++
  od;
  look_for(0);
  end = at;
#ifdef STALE_END
  end = 0;
#endif
}

#ifdef RECLAIM_EARLY
#define HAS_COME_BACK true
#else  /* a worker knows all readers of its own versions; those of earlier ones need time */
#define HAS_COME_BACK (own[version] || reading == 0 || known_to == worker)
#endif

#define MAY_DIE if :: kills < KILLS -> kills++; goto restart :: true fi

active proctype Keeper()
{
  byte end, version;
  bool is_there;
restart:
  atomic { recover(); check() }
  do
  :: asked > answered ->
    atomic { version = asked; look_for(version); is_there = found }
#ifdef ANSWER_FIRST
    answered = version;
    MAY_DIE;
#endif
    if
#ifdef NO_TOKEN
    :: true ->
#else
    :: is_there
    :: !is_there ->
#endif
#ifdef RECORD_FIRST
      log[end] = version;
      MAY_DIE;
      held[version] = true;
#else
      held[version] = true;
      MAY_DIE;
      log[end] = version;
#endif
      own[version] = true;
      end++
    fi;
    MAY_DIE;
    answered = version;
    atomic { check() }
    MAY_DIE
  :: answered > 1 && !gone[answered - 1] ->
    version = answered - 1;
    if
    :: atomic {
         (reading != version || known_to != worker) && HAS_COME_BACK ->
         assert(reading != version);
#ifdef FREED_FIRST
         held[version] = false;
#else
         gone[version] = true;
#endif
       }
       MAY_DIE;
       gone[version] = true;
       held[version] = false
    :: reading == version && known_to == worker
    :: !HAS_COME_BACK
    fi
  od
}

active proctype Publisher()
{
  byte version = 1;
  do
  :: version > VERSIONS -> break
  :: else -> asked = version; answered == version; version++
  od
}

active proctype Reader()
{
  do
  :: atomic { answered != 0 && reading == 0 -> look_for(0); reading = last; known_to = worker }
  :: atomic { reading != 0 && known_to != worker -> known_to = worker }
  :: atomic { reading != 0 && known_to == worker -> reading = 0 }
  od
}
