/* SPDX-License-Identifier: Apache-2.0
 * The versions of one object of the store while its worker, or both halves of its keeper, are killed at any step:
 * src/store/keeper. The guard holds the descriptors and starts the next worker. The index is a file, which outlives both.
 * A publisher that was not answered asks again. The kernel knows what the reader reads; after the death of both halves
 * the reader offers it. tests/model/run checks that each answered version is in the index once and has its memory unless
 * both halves died, that no version is reclaimed while the reader has it open, that what the reader has offered is there
 * again, that a dropped version never comes back, and that each mistake is found:
 *   -DRECORD_FIRST       a version is recorded before the guard has its descriptors
 *   -DANSWER_FIRST       the publisher is answered before the record is written
 *   -DSTALE_END          a new worker appends where the index ended when the guard was forked
 *   -DNO_TOKEN           a publisher that asks again gets another version
 *   -DFREED_FIRST        a version loses its descriptors before the record of that is written
 *   -DRECLAIM_UNASKED    the worker does not ask the kernel who reads
 *   -DLOCK_LATE          the reader locks the version itself, after it has the answer
 *   -DINDEX_IN_MEMORY    the index ends with both halves
 *   -DOFFER_DROPPED      a version is taken back though the index says that it was dropped
 */
#define VERSIONS 3
#define KILLS 2
#define LOG 8

byte log[LOG];             /* the versions in the order of their records; 0 behind the last */
bool held[VERSIONS + 1];   /* the guard has the descriptors */
bool gone[VERSIONS + 1];   /* there is a record that it was dropped */
bool dropped[VERSIONS + 1];  /* it was dropped, whatever the records say */
byte asked = 0, answered = 0;
byte reading = 0;          /* the version that is open, and locked */
byte keeper = 0, known_to = 0;  /* deaths of both halves, and those after which the reader offered */
byte kills = 0;
byte at, last;
bool found;

inline look_for(version)  /* last becomes the newest version that can be opened */
{
  at = 0; last = 0; found = false;
  do
  :: log[at] == 0 -> break
  :: else ->
    if :: log[at] == version -> found = true :: else fi;
    if :: held[log[at]] && !gone[log[at]] -> last = log[at] :: else fi;
    at++
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
    assert(!found || held[v] || gone[v] || keeper > 0);
    assert(!dropped[v] || (gone[v] && !held[v]));
    v++
  od;
  assert(reading == 0 || known_to != keeper || held[reading] || gone[reading]);
  at = 0;
  do
  :: log[at] == 0 || log[at + 1] == 0 -> break
  :: else -> assert(log[at] < log[at + 1]); at++
  od
}

inline lose_all()  /* both halves die */
{
  byte l = 0;
  keeper++;
  do
  :: l > VERSIONS -> break
  :: else -> held[l] = false; l++
  od;
#ifdef INDEX_IN_MEMORY
  l = 0;
  do
  :: l == LOG -> break
  :: else -> log[l] = 0; l++
  od
#endif
}

inline recover()
{
  byte w = 1;
  do
  :: w > VERSIONS -> break
  :: else ->
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

inline drop(version)
{
#ifdef FREED_FIRST
  held[version] = false;
#else
  gone[version] = true;
#endif
}

#define MAY_DIE \
  if \
  :: kills < KILLS -> kills++; goto restart \
  :: kills < KILLS -> kills++; atomic { lose_all() }; goto restart \
  :: true \
  fi

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
    :: is_there -> held[version] = !gone[version]
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
      end++
    fi;
    MAY_DIE;
    answered = version;
    atomic { check() }
    MAY_DIE
  :: answered > 1 && !gone[answered - 1] && held[answered - 1] ->  /* reclaim */
    version = answered - 1;
    if
#ifdef RECLAIM_UNASKED
    :: atomic { true -> assert(reading != version); drop(version) }
#else
    :: atomic { reading != version -> drop(version) }
#endif
       MAY_DIE;
       atomic { gone[version] = true; held[version] = false; dropped[version] = true }
    :: reading == version
    fi
  :: answered > 0 && !gone[answered] && held[answered] ->  /* delete() */
    version = answered;
    drop(version);
    MAY_DIE;
    atomic { gone[version] = true; held[version] = false; dropped[version] = true }
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
  byte chosen;
  do
  :: atomic { answered != 0 && reading == 0 -> look_for(0); chosen = last; known_to = keeper;
#ifndef LOCK_LATE
       reading = chosen
#endif
     }
#ifdef LOCK_LATE
     atomic { reading = chosen; assert(chosen == 0 || !gone[chosen] || chosen == answered) }
#endif
  :: atomic { reading != 0 && known_to != keeper ->  /* offer */
       look_for(reading); known_to = keeper;
       if
#ifdef OFFER_DROPPED
       :: found -> held[reading] = true; gone[reading] = false
#else
       :: found && !gone[reading] -> held[reading] = true
#endif
       :: else
       fi
     }
  :: reading != 0 -> reading = 0
  od
}
