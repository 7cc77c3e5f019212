# SPDX-License-Identifier: Apache-2.0
"""Two actors of Ray on one copy of a tensor: it stays where it was made, in both directions."""

import ray
import torch
import onecopy.integrations.ray

onecopy.integrations.ray.register()  # before the classes of actors


@ray.remote(num_cpus=0)
class Trainer:
    @ray.method(tensor_transport="onecopy")
    def weights(self):
        self.tensor = torch.zeros(1 << 20)
        return self.tensor

    def train(self, gradient):
        self.tensor.add_(5)
        gradient.neg_()


@ray.remote(num_cpus=0)
class Engine:
    def keep(self, weights):
        self.weights = weights  # the trainer's memory

    @ray.method(tensor_transport="onecopy")
    def gradient(self):
        self.mine = torch.ones(3)
        return self.mine

    def look(self):
        return self.weights[0].item(), self.mine.tolist()


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
trainer, engine = Trainer.remote(), Engine.remote()
ray.get(engine.keep.remote(trainer.weights.remote()))
ray.get(trainer.train.remote(engine.gradient.remote()))
print("the engine sees", ray.get(engine.look.remote()))
