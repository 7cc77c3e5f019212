# SPDX-License-Identifier: Apache-2.0
"""onecopy.rpc: exported functions, deadlines, cancelling, streams, bounds, and how tensors cross."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import native_rpc_functions as theirs
from onecopy import rpc
from support.rpc_group import NativeGroup, shared_group, until

# Within members, `other` is the name of the callee.


pair = shared_group(2, NativeGroup)


def call(function, *args, **options):
    return rpc.call("worker1", function, args, **options)


def test_a_call_gives_the_result_of_an_exported_function(pair):
    assert pair[0](call, theirs.add, 1, 2) == 3
    assert pair[0](call, theirs.pid) == pair[1].process.pid
    assert pair[0](call_by_name) == 5


def call_by_name():
    return rpc.call("worker1", "native_rpc_functions:add", (2,), {"b": 3})


def test_an_error_comes_back_as_its_own_class_with_the_place_in_the_text(pair):
    with pytest.raises(KeyError, match="name=worker1.*not there.*in fail"):
        pair[0](call, theirs.fail, "not there")


def without_encoding_in_python(function, *args):
    """The result of a call after the first one, in a process where no value is encoded in Python."""
    call(theirs.pid)  # the first contact
    with theirs.no_reduction():
        return call(function, *args), rpc.call_async("worker1", function, args).wait()


def test_plain_values_go_without_encoding_in_python(pair):
    """A native call took four times as long as one of the drop-in, most of it in Python code."""
    assert pair[0](without_encoding_in_python, theirs.add, 1, 2) == (3, 3)


def test_nested_calls_go_without_encoding_in_python_and_take_trace_and_deadline_along(pair):
    found = pair[0](nested_quickly, 30.0)
    traces, seconds = zip(*found)
    assert len(set(traces)) == 1 and traces[0].startswith("worker0.")
    assert 25 < seconds[2] <= seconds[1] <= seconds[0] < 30


def nested_quickly(timeout):
    return call(theirs.nested_without_encoding_in_python, "worker0", timeout=timeout)


# --- functions that may be called


def test_a_function_that_is_not_exported_is_refused_and_the_error_says_what_to_do(pair):
    with pytest.raises(PermissionError, match=r"not_exported is not exported.*@onecopy\.rpc\.export.*allow="):
        pair[0](call, theirs.not_exported)


def test_an_exported_functions_module_gives_nothing_else_away(pair):
    for name in ("native_rpc_functions:os.getpid", "native_rpc_functions:torch.add", "native_rpc_functions:time.sleep"):
        with pytest.raises(PermissionError):
            pair[0](call, name)


def test_no_module_is_imported_for_a_caller(pair):
    with pytest.raises(PermissionError, match="not exported"):
        pair[0](call, "this_module_does_not_exist:f")


def through_the_other_interface():
    import onecopy.distributed.rpc as dropin

    return dropin.rpc_sync("worker1", theirs.not_exported)


def test_the_names_of_torch_reach_no_more(pair):
    with pytest.raises(PermissionError, match="not_exported is not exported"):
        pair[0](through_the_other_interface)


def test_allow_names_functions_by_pattern(tmp_path):
    with NativeGroup(tmp_path, 2, allow=["native_rpc_functions.not_*", "torch.add"]) as group:
        assert group[0](call, theirs.not_exported) == "it ran"
        assert group[0](call, torch.add, 1, 2) == 3
        with pytest.raises(PermissionError, match="torch.sub is not exported"):
            group[0](call, torch.sub, 1, 2)
        with pytest.raises(PermissionError):
            group[0](call, "native_rpc_functions:torch.load")


def test_what_has_no_name_is_refused_at_the_caller(pair):
    with pytest.raises(TypeError, match="not at the top level of a module"):
        pair[0](call_a_lambda)
    with pytest.raises(TypeError, match="not at the top level of a module"):
        pair[0](call_a_bound_method)
    with pytest.raises(TypeError, match="'module:name'"):
        pair[0](call, "add")
    with pytest.raises(TypeError, match="local|top level"):
        rpc.export(lambda: 1)


def call_a_lambda():
    return call(lambda: 1)


def call_a_bound_method():
    return call([].append, 1)


def test_a_wrong_signature_is_the_callees_type_error(pair):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        pair[0](call, theirs.add)


def arguments_that_are_no_tuple():
    return rpc.call("worker1", theirs.add, 5)


def test_arguments_that_are_no_tuple(pair):
    with pytest.raises(TypeError, match="args is a tuple of arguments, not a int"):
        pair[0](arguments_that_are_no_tuple)


class Plain:
    pass


def argument_that_cannot_cross():
    return rpc.call("worker1", theirs.add, (1, {"model": [Plain()]}))


def keyword_that_cannot_cross():
    return rpc.call("worker1", theirs.add, (1,), {"b": Plain()})


def test_an_argument_that_cannot_cross_is_named_and_nothing_is_sent(pair):
    with pytest.raises(
        TypeError, match=r"args\[1\]\['model'\]\[0\]: test_rpc_native.Plain cannot cross without pickle"
    ):
        pair[0](argument_that_cannot_cross)
    with pytest.raises(TypeError, match=r"kwargs\['b'\]: test_rpc_native.Plain cannot cross without pickle"):
        pair[0](keyword_that_cannot_cross)
    assert pair[0](under_way) == 0


def under_way():
    return rpc.stats()["members"][1]["under_way"]


# --- deadlines


def left_with_timeout(seconds):
    return rpc.call("worker1", theirs.seconds_left, timeout=seconds)


def left_nested(seconds):
    return rpc.call("worker1", theirs.seconds_left_at, ("worker0",), timeout=seconds)


def test_the_deadline_goes_along_with_calls_that_the_function_makes(pair):
    assert 20 < pair[0](left_with_timeout, 30) < 30
    assert 20 < pair[0](left_nested, 30) < 30
    assert pair[0](left_with_timeout, 0) is None


def nested_timeout():
    with pytest.raises(rpc.Timeout):
        rpc.call("worker1", theirs.nested_sleep, ("worker0", 2.0), timeout=0.1)


def test_a_nested_call_without_a_timeout_of_its_own_ends_with_the_outer_one(pair):
    pair[0](nested_timeout)
    found = []
    until(lambda: found.extend(pair[0](call, theirs.what_was_seen)) or found, "the nested call did not end")
    assert found == ["nested call timed out"]


def bad_timeout():
    return rpc.call("worker1", theirs.add, (1,), timeout=-2)


def test_a_negative_timeout_is_refused(pair):
    with pytest.raises(ValueError, match="a timeout is a number of seconds"):
        pair[0](bad_timeout)


# --- cancelling


def cancel_a_running_call():
    made = rpc.call_async("worker1", theirs.until_cancelled)
    until(lambda: "begun" in call(theirs.what_was_seen), "it has not begun")
    assert made.cancel()
    with pytest.raises(rpc.Cancelled, match="until_cancelled at .*worker1"):
        made.wait()
    until(lambda: "cancelled" in call(theirs.what_was_seen), "the function was not told")
    assert not made.cancel()


def cancel_a_call_that_is_answered_at_once():
    made = rpc.call_async("worker1", theirs.until_cancelled)
    until(lambda: "begun" in call(theirs.what_was_seen), "it has not begun")
    agent = type(made.agent)

    def note(self, *arguments, tell=agent.note):
        tell(self, *arguments)
        until(made.done, "the function has not answered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "note", note)
        assert made.cancel()
    with pytest.raises(rpc.Cancelled):
        made.wait()
    until(lambda: "cancelled" in call(theirs.what_was_seen), "the function was not told")


def interrupt_a_call():
    def interrupt():
        until(lambda: "begun" in call(theirs.what_was_seen), "it has not begun")
        os.kill(os.getpid(), signal.SIGINT)

    call(theirs.pid)  # the first contact
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        rpc.call("worker1", theirs.until_cancelled)
    until(lambda: "cancelled" in call(theirs.what_was_seen), "the function was not told")
    return [made for made in rpc.calls() if made["direction"] == "made"]


def test_an_interrupted_call_is_over_on_both_sides(pair):
    assert pair[0](interrupt_a_call) == []


def test_a_cancelled_call_fails_at_once_and_its_function_is_told(pair):
    pair[0](cancel_a_running_call)


def test_a_cancelled_call_is_cancelled_however_fast_its_function_answers(pair):
    pair[0](cancel_a_call_that_is_answered_at_once)


def time_out():
    with pytest.raises(rpc.Timeout):
        rpc.call("worker1", theirs.until_cancelled, timeout=0.1)
    seen = []
    until(lambda: seen.extend(call(theirs.what_was_seen)) or "cancelled" in seen, "the function was not told")


def test_a_function_is_told_that_its_caller_waits_no_more(pair):
    pair[0](time_out)


def nested_reference():
    counter = rpc.remote(rpc.members()[0], theirs.Counter, (5,))
    with pytest.raises(rpc.Timeout):
        rpc.call("worker1", theirs.add_to, (counter, 1), timeout=0.1)
    return rpc.call("worker1", theirs.add_to, (counter, 1), timeout=30)


def test_methods_of_references_end_with_the_call_that_calls_them(pair):
    assert pair[0](nested_reference) in (6, 7)


def wait_for_release():
    rpc.call("worker1", theirs.until_cancelled)


def test_the_functions_of_a_killed_caller_are_told(tmp_path):
    with NativeGroup(tmp_path, 3) as group:
        group[0].begin(wait_for_release)
        until(lambda: "begun" in group[2](call, theirs.what_was_seen), "it has not begun")
        group[0].kill()
        until(lambda: "cancelled" in group[2](call, theirs.what_was_seen), "the function was not told")


# --- asyncio


def awaited():
    async def main():
        one = rpc.call_async("worker1", theirs.add, (1, 1))
        results = await asyncio.gather(*[rpc.call_async("worker1", theirs.add, (i, i)) for i in range(20)])
        return await one, results, await rpc.call_async("worker1", theirs.double_later, (4,))

    return asyncio.run(main())


def test_calls_are_awaited_and_coroutines_are_called(pair):
    assert pair[0](awaited) == (2, [2 * i for i in range(20)], 8)


def await_a_failure():
    async def main():
        with pytest.raises(KeyError, match="nothing"):
            await rpc.call_async("worker1", theirs.fail, ("nothing",))

    asyncio.run(main())


def test_awaiting_throws_what_the_function_threw(pair):
    pair[0](await_a_failure)


def cancel_a_task():
    async def main():
        task = asyncio.ensure_future(wait_in_task())
        while "begun" not in call(theirs.what_was_seen):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def wait_in_task():
        await rpc.call_async("worker1", theirs.until_cancelled)

    asyncio.run(main())
    until(lambda: "cancelled" in call(theirs.what_was_seen), "the function was not told")


def test_cancelling_a_task_cancels_its_call(pair):
    pair[0](cancel_a_task)


def await_a_future_of_the_other_interface():
    import onecopy.distributed.rpc as dropin

    async def main():
        return await dropin.rpc_async("worker1", theirs.add, args=(1, 5))

    return asyncio.run(main())


def test_futures_of_the_other_interface_are_awaited_too(pair):
    assert pair[0](await_a_future_of_the_other_interface) == 6


# --- streams


def listed(function, *args, **options):
    return list(rpc.stream("worker1", function, args, **options))


def sums_of_tensors(count):
    return [float(item["tensor"].sum()) for item in rpc.stream("worker1", theirs.tensors, (count,))]


def test_a_generator_is_an_iterator_of_the_caller(pair):
    assert pair[0](listed, theirs.numbers, 100) == list(range(100))
    assert pair[0](sums_of_tensors, 5) == [2000.0 * i for i in range(5)]
    assert pair[0](listed, theirs.numbers, 0) == []


def items_and_error():
    items = []
    with pytest.raises(ValueError, match="no number 7"):
        for item in rpc.stream("worker1", theirs.numbers, (10, 7)):
            items.append(item)
    return items


def test_what_a_generator_throws_comes_behind_its_items(pair):
    for _ in range(20):
        assert pair[0](items_and_error) == list(range(7))
    pair[0](call, theirs.what_was_seen)


def stop_after_three(credit):
    with rpc.stream("worker1", theirs.numbers, (10**9,), credit=credit) as items:
        taken = [next(items) for _ in range(3)]
    seen = []
    until(lambda: seen.extend(call(theirs.what_was_seen)) or "closed" in seen, "the generator was not closed")
    return taken, len(seen) - 1


def test_a_generator_is_no_further_ahead_than_its_credit_and_ends_with_the_loop(pair):
    taken, made = pair[0](stop_after_three, 4)
    assert taken == [0, 1, 2]
    assert made <= 3 + 4


def drop_after_one():
    items = rpc.stream("worker1", theirs.numbers, (10**9,), credit=2)
    next(items)
    del items
    gc.collect()
    seen = []
    until(lambda: seen.extend(call(theirs.what_was_seen)) or "closed" in seen, "the generator was not closed")


def test_a_stream_that_is_dropped_ends_its_generator(pair):
    pair[0](drop_after_one)


def asynchronous_items():
    async def main():
        return [item async for item in rpc.stream("worker1", theirs.numbers, (50,), credit=3)]

    return asyncio.run(main())


def test_a_stream_is_an_asynchronous_iterator(pair):
    assert pair[0](asynchronous_items) == list(range(50))


def items_of_an_asynchronous_generator():
    async def main():
        async with rpc.stream("worker1", theirs.numbers_later, (10**9,)) as items:
            return [item async for _, item in zip_with(range(5), items)]

    taken = asyncio.run(main())
    until(lambda: "closed" in call(theirs.what_was_seen), "the generator was not closed")
    return taken, listed(theirs.numbers_later, 4)


async def zip_with(numbers, items):
    for number in numbers:
        yield number, await anext(items)


def test_an_asynchronous_generator_is_a_stream_too(pair):
    assert pair[0](items_of_an_asynchronous_generator) == (list(range(5)), list(range(4)))


def item_that_cannot_cross():
    items = rpc.stream("worker1", theirs.odd_items)
    assert next(items) == 1
    with pytest.raises(TypeError, match="item 1: builtins.object cannot cross without pickle"):
        next(items)


def test_an_item_that_cannot_cross_is_named(pair):
    pair[0](item_that_cannot_cross)


def test_streams_and_calls_are_not_mixed_up(pair):
    with pytest.raises(TypeError, match=r"is a generator function: call it with onecopy.rpc.stream"):
        pair[0](call, theirs.numbers, 3)
    with pytest.raises(TypeError, match=r"is not a generator function: call it with onecopy.rpc.call"):
        pair[0](listed, theirs.add, 3)


def stream_slowly(file):
    items = rpc.stream("worker1", theirs.numbers, (10**9,))
    next(items)
    open(file, "w").close()
    for _ in items:
        time.sleep(0.001)


def test_the_iterator_throws_when_the_callee_is_killed(tmp_path):
    with NativeGroup(tmp_path, 2) as group:
        group[0].begin(stream_slowly, f"{tmp_path}/begun")
        until(lambda: os.path.exists(f"{tmp_path}/begun"), "the stream has not begun")
        group[1].kill()
        with pytest.raises(RuntimeError, match="name=worker1.* has ended"):
            group[0].result()


def stream_to_self():
    return list(rpc.stream(rpc.members()[0], theirs.numbers, (10,), credit=2))


def test_a_stream_of_the_process_itself(pair):
    assert pair[0](stream_to_self) == list(range(10))


# --- bounds


def fill_and_refuse():
    first = [rpc.call_async("worker1", theirs.until_cancelled) for _ in range(2)]
    with pytest.raises(rpc.Busy, match=r"2 calls to .*worker1.*max_calls=2"):
        rpc.call("worker1", theirs.add, (1,))
    first[0].cancel()
    until(lambda: under_way() == 1, "a cancelled call takes room")
    assert rpc.call("worker1", theirs.add, (1,)) == 2
    first[1].cancel()


def test_a_call_beyond_the_bound_is_refused_where_that_is_wanted(tmp_path):
    with NativeGroup(tmp_path, 2, max_calls=2, when_full="refuse") as group:
        group[0](fill_and_refuse)


def wait_for_room():
    first = [rpc.call_async("worker1", theirs.until_cancelled) for _ in range(2)]
    with pytest.raises(rpc.Timeout, match="max_calls=2"):
        rpc.call("worker1", theirs.add, (1,), timeout=0.05)
    threading.Timer(0.05, first[0].cancel).start()
    assert rpc.call("worker1", theirs.add, (1,)) == 2
    first[1].cancel()
    return rpc.stats()["members"][1]["waits_for_room"]


def test_a_call_beyond_the_bound_waits_for_room_until_its_deadline(tmp_path):
    with NativeGroup(tmp_path, 2, max_calls=2) as group:
        assert group[0](wait_for_room) == 2


# --- how tensors cross


def default_mode():
    mine = torch.zeros(4000)
    return rpc.call("worker1", theirs.add_one_in_place, (mine,)), float(mine.sum())


def borrowed_argument():
    mine = torch.zeros(4000)
    theirs_sum = rpc.call("worker1", theirs.add_one_in_place, (rpc.borrow(mine),))
    return theirs_sum, float(mine.sum())


def borrowed_small_argument():
    mine = torch.zeros(4)
    rpc.call("worker1", theirs.add_one_in_place, ([rpc.borrow(mine)][0],))
    return mine.tolist()


def moved_argument():
    mine = torch.ones(4000)
    rpc.call("worker1", theirs.keep, (rpc.move(mine),))
    assert rpc.call("worker1", theirs.kept_sum) == 4000.0
    borrowed = rpc.call("worker1", theirs.lend_kept)
    borrowed += 1
    return mine.numel(), rpc.call("worker1", theirs.kept_sum)


def test_arguments_are_copied_unless_they_are_lent_or_given_away(pair):
    assert pair[0](default_mode) == (4000.0, 0.0)
    assert pair[0](borrowed_argument) == (4000.0, 4000.0)
    assert pair[0](borrowed_small_argument) == [1.0] * 4
    assert pair[0](moved_argument) == (0, 8000.0)


def test_what_cannot_be_lent_or_given_away_is_refused():
    with pytest.raises(TypeError, match="borrow.. takes a tensor, not a list"):
        rpc.borrow([1])
    with pytest.raises(TypeError, match="borrow.. takes a dense tensor"):
        rpc.borrow(torch.ones(2).to_sparse())
    with pytest.raises(TypeError, match="needs no gradient"):
        rpc.move(torch.ones(2, requires_grad=True))


def gradient_of_a_borrowed_tensor():
    import onecopy.distributed.autograd as dist_autograd

    x = torch.ones(2000, requires_grad=True)
    with dist_autograd.context() as context:
        y = rpc.call("worker1", theirs.add, (rpc.borrow(x), 1))
        dist_autograd.backward(context, [y.sum()])
        return dist_autograd.get_gradients(context)[x].tolist() == [1.0] * 2000


def test_gradients_go_through_borrowed_tensors(pair):
    assert pair[0](gradient_of_a_borrowed_tensor)


def call_oneself():
    mine = torch.zeros(3)
    me = rpc.members()[0]
    assert rpc.call(me, theirs.data_ptr, (mine,)) == mine.data_ptr()
    rpc.call(me, theirs.add_one_in_place, (rpc.borrow(mine),))
    with pytest.raises(KeyError, match="nothing"):
        rpc.call(me, theirs.fail, ("nothing",))
    with pytest.raises(rpc.Timeout):
        rpc.call(me, theirs.sleep, (0.5,), timeout=0.02)
    with pytest.raises(PermissionError):
        rpc.call(me, theirs.not_exported)
    return mine.tolist()


def test_a_call_of_the_process_itself_copies_nothing(pair):
    assert pair[0](call_oneself) == [1.0, 1.0, 1.0]


# --- references, several calls, reports


def count_up():
    counter = rpc.remote("worker1", theirs.Counter, (5,))
    with pytest.raises(PermissionError, match="begins with an underscore"):
        counter.rpc_sync()._secret()
    return counter.rpc_sync().add(2), counter.owner_name()


def test_a_reference_to_a_value_of_an_exported_class(pair):
    assert pair[0](count_up) == (7, "worker1")


def several():
    waiting = rpc.call_async("worker1", theirs.until_cancelled)
    assert rpc.wait_all([rpc.call_async("worker1", theirs.add, (i,)) for i in range(10)]) == list(range(1, 11))
    with pytest.raises(KeyError, match="first"):
        rpc.wait_all([waiting, rpc.call_async("worker1", theirs.fail, ("first",))])
    with pytest.raises(rpc.Timeout, match="1 of 1 calls"):
        rpc.wait_all([waiting], timeout=0.01)
    waiting.cancel()
    call(theirs.what_was_seen)


def test_wait_all_ends_with_the_first_failure(pair):
    pair[0](several)


def reports(*member):
    """Returns what this process, or a member, says of a call that is under way, and its statistics."""
    waiting = rpc.call_async("worker1", theirs.until_cancelled)
    until(lambda: "begun" in call(theirs.what_was_seen), "it has not begun")
    described = [c for c in rpc.calls(*member) if c["function"].endswith(":until_cancelled")]
    waiting.cancel()
    call(theirs.what_was_seen)
    return described, rpc.stats(*member)


def test_calls_under_way_and_latencies_are_reported(pair):
    described, stats = pair[0](reports)
    assert [(c["member"], c["direction"], c["stage"]) for c in described] == [("worker1", "made", "sent")]
    assert described[0]["ages"]["made"] >= described[0]["ages"]["sent"] >= 0
    asked = stats["called"]["native_rpc_functions:what_was_seen"]
    assert asked["calls"] == sum(asked["buckets"]) > 0
    assert 0 < asked["p50_us"] <= asked["p99_us"]
    with pytest.raises(KeyError):
        pair[0](call, theirs.fail, "counted")
    failing = pair[1](served, "fail")
    assert failing["errors"] == failing["calls"] > 0


def test_another_members_calls_are_reported(pair):
    described, stats = pair[0](reports, "worker1")
    assert [(c["member"], c["direction"], c["stage"]) for c in described] == [("worker0", "served", "running")]
    assert stats["served"]["native_rpc_functions:what_was_seen"]["calls"] > 0


def served(name):
    return rpc.stats()["served"][f"native_rpc_functions:{name}"]


def test_a_trace_is_one_for_all_calls_that_a_call_makes(pair):
    outer, inner = pair[0](call, theirs.trace_at, "worker0")
    assert outer == inner
    assert outer.startswith("worker0.")


LINES = []


def log_lines():
    class Keep(logging.Handler):
        def emit(self, record):
            LINES.append(record.getMessage())

    logging.getLogger("onecopy.rpc").addHandler(Keep())
    logging.getLogger("onecopy.rpc").setLevel(logging.DEBUG)


def lines_of(trace):
    return [line for line in LINES if line.startswith(trace + ":")]


def test_both_sides_log_the_trace(tmp_path):
    with NativeGroup(tmp_path, 2) as group:
        for member in group.members:
            member(log_lines)
        trace = group[0](call, theirs.trace)
        assert any("call native_rpc_functions:trace at" in line for line in group[0](lines_of, trace))
        assert any("for WorkerInfo(id=0, name=worker0) begins" in line for line in group[1](lines_of, trace))


# --- routes


def routes():
    rpc.call("worker1", theirs.add, (1,))
    found = {}
    for name, tensor in (
        ("small", torch.ones(4)),
        ("large", torch.ones(4000)),
        ("strided", torch.ones(40, 40).t()[:30]),
        ("empty", torch.ones(0)),
        ("borrowed", rpc.borrow(torch.ones(4000))),
        ("moved", rpc.move(torch.ones(4000))),
        ("sparse", torch.eye(3).to_sparse()),
    ):
        told = rpc.explain("worker1", tensor)
        before = rpc.stats()["routes"]["sent"]
        rpc.call("worker1", theirs.ignore, (tensor,))
        after = rpc.stats()["routes"]["sent"]
        taken = {route: n - before.get(route, 0) for route, n in after.items() if n != before.get(route, 0)}
        found[name] = (told.name, taken)
    return found


def test_explain_names_the_route_that_a_tensor_then_takes(pair):
    found = pair[0](routes)
    assert found["small"] == ("inline", {"inline": 1})
    assert found["large"] == ("copy", {"copy": 1})
    assert found["borrowed"] == ("lease", {"lease": 1})
    assert found["moved"] == ("move", {"move": 1})
    assert found["strided"] == ("copy", {"copy": 1})
    assert found["empty"] == ("inline", {"inline": 1})
    assert found["sparse"] == ("parts", {"parts": 1, "inline": 2})


def explain_here():
    return str(rpc.explain(rpc.members()[0], torch.ones(3)))


def test_explain_says_why(pair):
    assert pair[0](explain_here) == "here: the callee is this process: it gets the tensor itself"


@pytest.mark.parametrize(
    "here, there, mode, can_reach, route",
    [
        ("GPU-1", "GPU-1", "copy", True, "copy"),
        ("GPU-1", "GPU-1", "borrow", True, "lease"),
        ("GPU-1", "GPU-2", "copy", True, "pull"),
        ("GPU-1", "GPU-2", "copy", False, "staged"),
        ("GPU-1", "cpu", "copy", True, "staged"),
        ("cpu", "GPU-1", "copy", True, "staged"),
        ("cpu", "cpu", "move", True, "move"),
    ],
)
def test_the_route_between_devices(here, there, mode, can_reach, route):
    from onecopy.rpc import routes

    assert routes.between(here, there, mode, can_reach).name == route


# --- onecopy ls --rpc


def own_listing():
    import onecopy

    return next(owner["groups"][0] for owner in onecopy.list_owners() if owner["pid"] == os.getpid())


def peer_in_listing(name):
    return next(peer for peer in own_listing()["peers"] if peer["name"] == name)


def calls_with_tensors():
    before = peer_in_listing("worker1")
    for tensor in (torch.ones(3), torch.ones(5000), rpc.borrow(torch.ones(5000))):
        rpc.call("worker1", theirs.ignore, (tensor,))
    after = peer_in_listing("worker1")
    routes = {route: count - before["routes"].get(route, 0) for route, count in after["routes"].items()}
    return after["state"], after["calls"] - before["calls"], after["answers"] - before["answers"], routes


def routes_of_a_dataclass():
    """The numbers of tensors by route in one call, which has a dataclass of two large tensors at three places."""
    batch = theirs.Batch(torch.ones(5000), torch.ones(6000))
    before = peer_in_listing("worker1")["routes"]
    rpc.call("worker1", theirs.ignore, ([batch, {"again": batch}, batch.labels],))
    after = peer_in_listing("worker1")["routes"]
    return {route: count - before.get(route, 0) for route, count in after.items()}


def test_a_call_with_a_dataclass_copies_each_tensor_once(pair):
    assert {route: count for route, count in pair[0](routes_of_a_dataclass).items() if count} == {"copy": 2}


def test_a_listing_counts_calls_and_tensors_by_route_for_each_peer(pair):
    state, calls, answers, routes = pair[0](calls_with_tensors)
    assert (state, calls, answers) == ("open", 3, 3)
    assert {route: count for route, count in routes.items() if count} == {"inline": 1, "copy": 1, "lease": 1}
    assert pair[0](own_listing)["name"] == "worker0"
    assert {peer["name"] for peer in pair[1](own_listing)["peers"]} == {"worker0", "worker1"}
