/* SPDX-License-Identifier: Apache-2.0
 * Fork: a borrower that holds the block forks; the child takes the claim over while the parent lets go
 * and the owner frees the block. docs/design/protocol.md explains it. Mistakes that must be found:
 *   -DALL_AFTER_SLOT    the owner reads the slot, then `all`
 *   -DANNOUNCED_FIRST   the owner reads `announced`, then the slot
 *   -DNOT_ANNOUNCED     the parent does not raise `announced`
 *   -DALL_FIRST         the child lowers `all` before it has set its slot
 *   -DNO_RESCAN_MARK    the child does not ask for a look after lowering `all`
 *   -DCOUNTED_EARLY     the owner counts the child before it looks at the child's page
 *   -DFORGOTTEN_FIRST   the owner drops a dead parent before it has read its last message
 */
byte parent_slot = 1, child_slot = 0;
bool all = true, rescan = false, announced = false;
bool parent_mark = false, child_mark = false;

bool parent_alive = true, child_alive = false, child_ended = false;
bool parent_attached = true, child_attached = false;
byte children = 0;
byte sent = 0;
bool forked = false;

bool closing = false, in_limbo = false, locked = false, home = false;

inline lock()   { atomic { !locked -> locked = true } }
inline unlock() { locked = false }

/* held |= the parent's page; held |= the child's page: one word at a time, in the order of the code. */
inline look_at_parent()
{
#ifdef ANNOUNCED_FIRST
  if :: announced != (children != 0) -> held = true :: else fi;
  if :: parent_slot != 0 -> held = true :: else fi
#else
  if :: parent_slot != 0 -> held = true :: else fi;
  if :: announced != (children != 0) -> held = true :: else fi
#endif
}
inline look_at_child()
{
#ifdef ALL_AFTER_SLOT
  if :: child_slot != 0 -> held = true :: else fi;
  if :: all -> held = true :: else fi
#else
  if :: all -> held = true :: else fi;
  if :: child_slot != 0 -> held = true :: else fi
#endif
}
inline look()
{
  held = false;
  if :: parent_attached -> look_at_parent() :: else fi;
  if :: child_attached -> look_at_child() :: else fi;
  if :: in_limbo && !held -> atomic { in_limbo = false; home = true } :: else fi
}

#define STEP atomic { parent_alive ->

proctype Parent(bool lets_go_first)
{
  if
  :: lets_go_first -> STEP parent_slot = 0 }; if :: closing -> STEP parent_mark = true } :: else fi
  :: else
  fi;
#ifndef NOT_ANNOUNCED
  STEP announced = true };
#endif
  STEP sent = 1 };
  STEP forked = true; child_alive = true };
  if
  :: !lets_go_first -> STEP parent_slot = 0 }; if :: closing -> STEP parent_mark = true } :: else fi
  :: else
  fi
}

proctype Child(bool holds)
{
  if
  :: forked
  :: !parent_alive && !forked -> goto over
  fi;
#ifdef ALL_FIRST
  all = false;
  child_slot = holds;
#else
  child_slot = holds;
  all = false;
#endif
#ifndef NO_RESCAN_MARK
  rescan = true;
#endif
  if
  :: holds -> assert(!home);               /* what a claim promises, also one that was inherited */
     child_slot = 0;
     if :: closing -> child_mark = true :: else fi
  :: else
  fi;
  if :: holds -> child_ended = true :: else fi;   /* one that holds nothing lives on */
  goto done;
over:
  child_ended = true;
done:
  skip
}

proctype Death()
{
  if :: parent_alive = false :: skip fi
}

proctype Broker()
{
  bool held;
end:
  do
#ifdef FORGOTTEN_FIRST
  :: parent_attached && !parent_alive ->
#else
  :: parent_attached && !parent_alive && sent != 1 ->
#endif
     lock(); parent_attached = false; look(); unlock()
  :: sent == 1 ->
     sent = 2;
#ifdef COUNTED_EARLY
     lock(); children = 1; look(); unlock();
     lock(); child_attached = true; unlock()
#else
     lock(); child_attached = true; unlock();
     lock();
#ifndef NOT_ANNOUNCED
     children = 1;
#endif
     look(); unlock()
#endif
  :: child_attached && child_ended ->
     lock(); child_attached = false; look(); unlock()
  :: (parent_attached && parent_mark) || (child_attached && (child_mark || rescan)) ->
     lock();
     atomic { parent_mark = false; child_mark = false; rescan = false };
     look(); unlock()
  od
}

proctype Freer()
{
  bool held;
  lock(); in_limbo = true; closing = true; look(); unlock()
}

proctype Quiet()
{
  timeout ->
  assert(home)          /* nothing is stuck in limbo */
}

init
{
  bool holds;
  if :: holds = true :: holds = false fi;
  atomic { run Parent(!holds); run Child(holds); run Death(); run Broker(); run Freer(); run Quiet() }
}
