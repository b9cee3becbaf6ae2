"""Write classifier.pt2, the model as torch.export sees it, for `buildd build`."""

import torch


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), -1)


torch.manual_seed(0)
rows = torch.export.Dim("rows", max=1024)
program = torch.export.export(Classifier().eval(), (torch.randn(8, 16),), dynamic_shapes=({0: rows},))
torch.export.save(program, "classifier.pt2")
