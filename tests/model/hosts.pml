/* SPDX-License-Identifier: Apache-2.0
 * Publishing one object on all hosts of a group, through a directory with leases and transactions, while hosts lose their
 * memory, leases end, and the answers of the directory are lost or old. A publisher stages its version, all hosts pull the version
 * and say that they have it, and one transaction makes it current. Another process rolls back meanwhile. tests/model/run
 * checks that no host goes back a generation, that no two versions have one number, that the hosts have what becomes current,
 * that a publisher is told the truth, and that each mistake is found:
 *   -DNUMBER_FROM_CURRENT    the next number follows the one that is current, which may be rolled back
 *   -DGENERATION_UNCHECKED   the transaction does not ask for the generation that the stage saw
 *   -DEPOCH_UNCHECKED        the transaction does not ask whether the hosts have kept their memory
 *   -DSTAGE_UNCHECKED        the transaction does not ask for the stage, which another publisher may have by then
 *   -DGENERATION_IN_MEMORY   a host forgets the generation that it has shown, with its memory
 *   -DANY_GENERATION         a host shows what the directory says, which may be an old answer
 *   -DUNANSWERED_FAILS       a publisher without an answer says that it has failed if its version is not current yet
 *   -DUNANSWERED_SUPERSEDED  a publisher without an answer says superseded if neither its stage nor its version is there
 */
#define HOSTS 2
#define TOKENS 4       /* 1 is current in the beginning, 2 and 3 are published; 0 is none */
#define GENERATIONS 6
#define KILLS 1
#define LEASES 1

mtype = { none, committed, superseded, failed, may_become };

/* The directory. */
byte stage = 0, stage_generation;
byte generation = 1, newest = 1;
byte current[GENERATIONS];  /* the token of each generation */
byte registered[HOSTS];     /* the epoch in the key of a host */

byte number[TOKENS];
bool was_current[TOKENS];
mtype outcome[TOKENS] = none;
bool flies[TOKENS];         /* the transaction of a publisher is under way */
byte said[8];               /* by token and host: the epoch with which the host had it whole, and 1 */

byte epoch[HOSTS];
byte whole[HOSTS];          /* a bit for each token */
byte shown[HOSTS];          /* the generation, as the host remembers it */
byte highest[HOSTS];        /* the generation, as its readers have seen it */
byte kills = 0, leases = 0;

#define HAS(host, token) ((whole[host] >> (token)) & 1)
#define SAID(token, host) said[((token) - 2) * HOSTS + (host)]
#define ALL_SAID(token) (SAID(token, 0) != 0 && SAID(token, 1) != 0)
#ifdef STAGE_UNCHECKED
#define STAGE_IS(token) true
#else
#define STAGE_IS(token) (stage == token)
#endif
#ifdef GENERATION_UNCHECKED
#define GENERATION_IS(seen) true
#else
#define GENERATION_IS(seen) (generation == seen)
#endif
#ifdef EPOCH_UNCHECKED
#define EPOCHS_ARE(token) true
#else
#define EPOCHS_ARE(token) (SAID(token, 0) == registered[0] + 1 && SAID(token, 1) == registered[1] + 1)
#endif
#define LACKS(host, token) (registered[host] == epoch[host] && !HAS(host, token))

inline make_current(token)
{
  generation++;
  current[generation] = token;
  was_current[token] = true;
  if :: number[token] > newest -> newest = number[token] :: else fi
}

inline commit(token)  /* the transaction, in the directory */
{
  if
  :: STAGE_IS(token) && GENERATION_IS(seen) && EPOCHS_ARE(token) ->
    assert(outcome[token] != failed && outcome[token] != superseded);
    assert(generation == seen);
    assert(!LACKS(0, token) && !LACKS(1, token));
    assert(!was_current[5 - token] || number[5 - token] != number[token]);
    assert(number[token] != 1);
    make_current(token);
    if :: stage == token -> stage = 0 :: else fi;
    is_done = true
  :: else -> is_done = false
  fi;
  flies[token] = false
}

inline end_with(token, result)
{
  outcome[token] = result;
  assert(result != committed || was_current[token]);
  assert((result != failed && result != superseded) || !was_current[token])
}

proctype Publisher(byte token)
{
  byte seen;
  bool is_done;
  atomic {
    stage == 0 -> stage = token; seen = generation;
#ifdef NUMBER_FROM_CURRENT
    number[token] = number[current[generation]] + 1
#else
    number[token] = newest + 1
#endif
  }
  if
  :: ALL_SAID(token)
  :: atomic { true -> end_with(token, failed) }  /* the deadline: nothing is under way */
     atomic { if :: stage == token -> stage = 0 :: else fi }
     goto over
  fi;
  flies[token] = true;
  if
  :: atomic { commit(token) }
     if
     :: is_done -> atomic { end_with(token, committed) }
     :: else -> atomic { end_with(token, superseded) }
     fi
  :: skip;  /* no answer: the transaction is carried out now, later, or never */
     if :: atomic { commit(token) } :: skip fi;
     atomic {
       if
       :: current[generation] == token -> end_with(token, committed)
#ifdef UNANSWERED_FAILS
       :: current[generation] != token && stage == token -> end_with(token, failed)
#endif
#ifdef UNANSWERED_SUPERSEDED
       :: current[generation] != token && stage != token -> end_with(token, superseded)
#endif
       :: current[generation] != token -> end_with(token, may_become)
       fi
     }
     if :: atomic { flies[token] -> commit(token) } :: skip fi
  fi;
over:
  skip
}

active proctype Rollback()
{
  byte seen;
  atomic { generation > 1 -> seen = generation }
  atomic {
    if
    :: generation == seen && current[generation] != 1 && (HAS(0, 1) || HAS(1, 1)) -> make_current(1)
    :: else
    fi
  }
}

active proctype Lease()  /* of a stage, whose publisher has ended or was not heard */
{
  do
  :: atomic { stage != 0 && leases < LEASES -> leases++; stage = 0 }
  od
}

proctype Host(byte host)
{
  byte seen;
  do
  :: atomic { stage != 0 && !HAS(host, stage) -> whole[host] = whole[host] | (1 << stage) }
  :: atomic { stage != 0 && HAS(host, stage) && SAID(stage, host) != epoch[host] + 1 -> SAID(stage, host) = epoch[host] + 1 }
  :: atomic { HAS(host, 2) && stage != 2 && !was_current[2] -> whole[host] = whole[host] & ~4 }  /* drafts are dropped */
  :: atomic { HAS(host, 3) && stage != 3 && !was_current[3] -> whole[host] = whole[host] & ~8 }
  :: atomic { !HAS(host, current[generation]) && HAS(1 - host, current[generation]) ->
       whole[host] = whole[host] | (1 << current[generation]) }
  :: atomic {
       seen = 1;
       do :: seen < generation -> seen++ :: break od;  /* the answer of the directory may be old */
       if
#ifdef ANY_GENERATION
       :: seen != shown[host] && HAS(host, current[seen]) ->
#else
       :: seen > shown[host] && HAS(host, current[seen]) ->
#endif
         shown[host] = seen;
         assert(seen >= highest[host]);
         highest[host] = seen
       :: else
       fi;
       seen = 0
     }
  :: atomic { kills < KILLS -> kills++; epoch[host]++; whole[host] = 0;
#ifdef GENERATION_IN_MEMORY
       shown[host] = 0
#endif
     }
     atomic { registered[host] = epoch[host] }
  od
}

init
{
  atomic {
    current[1] = 1;
    number[1] = 1;
    was_current[1] = true;
    whole[0] = 2;
    whole[1] = 2;
    run Publisher(2);
    run Publisher(3);
    run Host(0);
    run Host(1)
  }
}
