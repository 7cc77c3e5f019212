/* SPDX-License-Identifier: Apache-2.0
 * The life of one block: claim, release, free, drain, detach, and reuse for a second generation.
 * docs/design/protocol.md explains it; tests/model/run checks it, and that each mistake is found:
 *   -DLOCAL_COUNT        a process-local count in front of the slot
 *   -DWORD_FIRST         claim reads the word before it raises the slot
 *   -DSCAN_FIRST         the owner looks at the slots before it stores closing
 *   -DLIMBO_LATE         limbo is entered after the look, and drains are not locked out meanwhile
 *   -DSILENT_BACK_OFF    a failed claim lowers the slot and leaves no mark
 *   -DRELEASE_FIRST      release reads the word before it lowers the slot
 *   -DNO_RESCAN          a dead borrower's page goes without a look at limbo
 *   -DREUSE_BEFORE_GONE  the owner detaches when the socket closes, not when the process is gone
 */
#define BORROWERS 2
#define THREADS   2   /* of borrower 0; borrower 1 has one */

mtype = { exported, closing, unused };
mtype state = exported;
byte generation = 0;      /* as in the word: a closing block shows the next one */
byte memory = 0;          /* what a reader of the block sees: the generation it was written for */

byte slot[BORROWERS];
bool mark[BORROWERS];
bool attached[BORROWERS];
bool alive[BORROWERS];    /* its threads may take steps */
bool open_socket[BORROWERS];
byte count[BORROWERS];
byte users_left = THREADS + 1;

bool in_limbo = false;
bool locked = false;      /* the owner's ledger */
byte reused = 0;

#define HELD ((attached[0] && slot[0] != 0) || (attached[1] && slot[1] != 0))

inline lock()   { atomic { !locked -> locked = true } }
inline unlock() { locked = false }
/* A step of a borrower's thread: impossible once its process is dead. */
#define STEP atomic { alive[me] ->

inline reuse() { atomic { in_limbo = false; state = unused; memory = 9; reused++ } }

/* The look at the slots, one at a time, as the owner does it. */
inline look_and_reuse()
{
  seen = false;
  if :: attached[0] && slot[0] != 0 -> seen = true :: else fi;
  if :: !seen && attached[1] && slot[1] != 0 -> seen = true :: else fi;
  if :: !seen -> reuse() :: else fi
}

proctype User(byte me)
{
  byte g = 0; bool mine = false; bool last = false; bool close_seen = false;
#ifdef WORD_FIRST
  STEP mine = (state == exported && generation == g) };
  if :: mine -> STEP slot[me]++ } :: else -> goto gone fi;
#elif defined(LOCAL_COUNT)
  STEP count[me]++; last = (count[me] == 1) };
  if :: last -> STEP slot[me] = 1 } :: else fi;
  STEP mine = (state == exported && generation == g) };
#else
  STEP slot[me]++ };
  STEP mine = (state == exported && generation == g) };
#endif
  if
  :: mine -> STEP assert(memory == g) }      /* what a claim promises */
  :: else
#ifdef SILENT_BACK_OFF
     -> STEP slot[me]-- }; goto gone
#endif
  fi;
#ifdef RELEASE_FIRST
  STEP close_seen = (state == closing) };
  STEP slot[me]--; last = (slot[me] == 0) };
  if :: last && close_seen -> STEP mark[me] = true } :: else fi;
#elif defined(LOCAL_COUNT)
  STEP count[me]--; last = (count[me] == 0) };
  if :: last -> STEP slot[me] = 0 }; STEP close_seen = (state == closing) } :: else fi;
  if :: last && close_seen -> STEP mark[me] = true } :: else fi;
#else
  STEP slot[me]--; last = (slot[me] == 0) };
  if :: last -> STEP close_seen = (state == closing) } :: else fi;
  if :: last && close_seen -> STEP mark[me] = true } :: else fi;
#endif
gone:
  users_left--
}

/* Borrower 0 may die between any two of its steps: its socket closes first, its threads stop later. */
proctype Death()
{
  if
  :: open_socket[0] = false; alive[0] = false
  :: skip
  fi
}

proctype Watch()
{
  bool seen;
end:
#ifdef REUSE_BEFORE_GONE
  !open_socket[0];
#else
  !alive[0];
#endif
  lock();
  attached[0] = false;
#ifndef NO_RESCAN
  if :: in_limbo -> look_and_reuse() :: else fi;
#endif
  unlock()
}

proctype Freer()
{
  bool seen;
#ifdef LIMBO_LATE
  d_step { state = closing; generation++ };
  seen = HELD;
  if :: !seen -> reuse() :: else -> in_limbo = true fi
#elif defined(SCAN_FIRST)
  lock();
  seen = HELD;
  if
  :: !seen -> d_step { generation++; reuse() }
  :: else -> in_limbo = true; d_step { state = closing; generation++ }; look_and_reuse()
  fi;
  unlock()
#else
  lock();
  in_limbo = true;
  d_step { state = closing; generation++ };
  look_and_reuse();
  unlock()
#endif
}

proctype Drainer()
{
  byte b; bool seen; bool taken;
end:
  do
  :: mark[0] || mark[1] ->
     lock();
     b = 0;
     do
     :: b < BORROWERS ->
        atomic { taken = attached[b] && mark[b]; mark[b] = false };
        if :: taken && in_limbo -> look_and_reuse() :: else fi;
        b++
     :: else -> break
     od;
     unlock()
  od
}

/* Once nobody moves any more, the block is home, exactly once. */
proctype Quiet()
{
  timeout ->
  assert(reused == 1 && !in_limbo)
}

init
{
  atomic {
    attached[0] = true; attached[1] = true; alive[0] = true; alive[1] = true;
    open_socket[0] = true; open_socket[1] = true;
    run User(0); run User(0); run User(1);
    run Freer(); run Drainer(); run Death(); run Watch(); run Quiet()
  }
}
