// SPDX-License-Identifier: Apache-2.0
#include "module.h"

NB_MODULE(_core, m) {
  using namespace onecopy::python;
  m.doc() = "The C++ core of onecopy; import onecopy instead.";
  m.attr("__version__") = ONECOPY_VERSION;
  init_errors(m);
  init_leaks(m);
  init_kept(m);
  init_no_collection(m);
  init_tensor(m);
  init_device(m);
  init_create(m);
  init_handles(m);
  init_share(m);
  init_holds(m);
  init_open(m);
  init_bundle(m);
  init_load(m);
  init_stats(m);
  init_torch(m);
  init_values(m);
  init_message(m);
  init_queue(m);
  init_pipe(m);
  init_listener(m);
}
