# SPDX-License-Identifier: Apache-2.0
import torch
import onecopy
import onecopy.multiprocessing as mp


def engine(weights, questions, answers):
    model = torch.nn.Linear(2, 1, device="meta")  # no memory of its own
    onecopy.open(weights).load_into(model)  # its parameters are the trainer's memory
    for question in iter(questions.get, None):
        answers.put(model(question).item())


if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    weights = onecopy.share(model)  # one handle, for any number of tensors
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=engine, args=(weights, questions, answers))
    process.start()
    for step in range(1, 4):
        with torch.no_grad():
            model.weight.fill_(step)  # in place, as an optimizer does
            model.bias.zero_()
        questions.put(torch.ones(2))
        print(f"step {step}: the engine answers {answers.get()}")
    questions.put(None)
    process.join()
