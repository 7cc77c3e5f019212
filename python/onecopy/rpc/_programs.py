# SPDX-License-Identifier: Apache-2.0
"""Programs in C++ that call functions of this process, and are called by it: agents of onecopy::rpc::Agent.

They take plain values and tensors of the CPU, and are in no group of Python's: shutdown() waits for none of them.
Thread safety: all members may be called concurrently."""

from . import _group, registry


class Program(_group.Member):
    """A program in C++."""


def address():
    """The bytes by which a program in C++ finds this process: Agent::join() takes them. They are good until shutdown()."""
    return registry.current().node.address()


def enter(address):
    """The WorkerInfo of the program in C++ of that address, which Agent::address() gave. From now on it can be called:
    call(info, "name", args), with the names that Agent::define_plain() gave, and without keyword arguments.

    Throws BadHandle for bytes that are no address, InvalidArgument if its number is that of a member, RuntimeError if its
    name is.
    """
    return registry.current().enter_program(address)


def refuse_other_verbs(member, verb):
    """A program in C++ has functions alone."""
    if isinstance(member, Program) and verb != "native":
        raise TypeError(f"{member.info} is a program in C++: it can be called with call() and call_async() alone")
