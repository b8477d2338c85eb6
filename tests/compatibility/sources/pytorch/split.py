"""Trains a model that is split over two workers by PyTorch's RPC over TensorPipe's transport ibv, and compares its weights with those of
the same model in one process: split.py RANK FILE, with a file in which the workers find each other."""
import sys

import torch
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

STEPS = 10
SIZE = 512


def half(which):
    torch.manual_seed(which)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())


class Remote(nn.Module):
    """The half of the model at worker 1."""

    def __init__(self):
        super().__init__()
        self.layers = half(1)

    def forward(self, hidden):
        return self.layers(hidden)

    def references(self):
        return [rpc.RRef(parameter) for parameter in self.layers.parameters()]

    def weights(self):
        return [parameter.detach() for parameter in self.layers.parameters()]


def batches():
    torch.manual_seed(7)
    return [(torch.randn(64, SIZE), torch.randn(64, SIZE)) for _ in range(STEPS)]


def train_alone():
    model = nn.Sequential(half(0), half(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, wanted in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_split():
    first = half(0)
    second = rpc.remote("worker1", Remote)
    parameters = [rpc.RRef(parameter) for parameter in first.parameters()] + second.rpc_sync().references()
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.1)
    for inputs, wanted in batches():
        with autograd.context() as context:
            outputs = second.rpc_sync().forward(first(inputs))
            autograd.backward(context, [nn.functional.mse_loss(outputs, wanted)])
            optimizer.step(context)
    return [parameter.detach() for parameter in first.parameters()] + second.rpc_sync().weights()


torch.set_num_threads(1)
rank = int(sys.argv[1])
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[2]}", _transports=["ibv"], _channels=["basic"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    weights = zip(train_split(), train_alone(), strict=True)
    assert all(torch.equal(split, alone) for split, alone in weights), "the weights differ"
    print("the weights are equal")
rpc.shutdown()
