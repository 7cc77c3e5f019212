/* SPDX-License-Identifier: Apache-2.0
 * One page of a segment that its owner gives back to the system, and takes again, while processes pin it: src/share/
 * owner/pin_claim.h. A card reads the page that was there when it was pinned. tests/model/run checks that the owner
 * never writes another one, and that each mistake is found:
 *   -DNOTED_LATE         the pinner pins the page, then says so
 *   -DNOT_WAITED         the pinner does not wait for a hole that is under way
 *   -DLOOKED_FIRST       the owner looks at the pins before it says that it makes a hole
 *   -DOWN_PINS_ONLY      the owner looks at its own pins, and not at those of borrowers
 *   -DUNPINNED_LATE      the pinner says that it has ended before the driver has
 */
#define PINNERS 2         /* borrowers, or the owner itself: 0 is the owner */
#define NONE 255

byte page = 1;            /* the number of the page that is there now */
byte taken[PINNERS];      /* the page that the driver has pinned for this process */
byte pins[PINNERS];
byte holes = 0;
byte done = 0;

inline look(found)
{
  found = false;
  if :: pins[0] != 0 -> found = true :: else fi;
#ifndef OWN_PINS_ONLY
  if :: !found && pins[1] != 0 -> found = true :: else fi
#endif
}

proctype Pinner(byte me)
{
#ifdef NOTED_LATE
  holes == 0;
  taken[me] = page;
  pins[me]++;
#else
  pins[me]++;
#ifndef NOT_WAITED
  holes == 0;
#endif
  taken[me] = page;
#endif
  /* A block is written by the CPU, and read by the card. */
  assert(taken[me] == page);
  assert(taken[me] == page);
#ifdef UNPINNED_LATE
  pins[me]--;
  assert(taken[me] == page);
  taken[me] = NONE;
#else
  taken[me] = NONE;
  pins[me]--;
#endif
  done++
}

/* The owner gives the page back twice; another page is there when it is used again. */
proctype Owner()
{
  bool found;
  byte round = 0;
  do
  :: round < 2 ->
#ifdef LOOKED_FIRST
     look(found);
     holes++;
#else
     holes++;
     look(found);
#endif
     if :: !found -> page++ :: else fi;
     holes--;
     round++
  :: else -> break
  od;
  done++
}

/* Nobody waits for ever. */
proctype Quiet()
{
  timeout -> assert(done == PINNERS + 1)
}

init
{
  atomic {
    taken[0] = NONE; taken[1] = NONE;
    run Pinner(0); run Pinner(1); run Owner(); run Quiet()
  }
}
