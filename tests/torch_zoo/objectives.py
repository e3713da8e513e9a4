"""Losses inside the module, and ways to train: two copies, two heads, a game, samples, codes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_zoo.case import EQUAL_VALUES, Case, Example, floats

Loss = Callable[[Tensor, Tensor], Tensor]


class WithLosses(nn.Module):
    """A linear layer under losses, each of which is an output."""

    def __init__(self, *losses: Loss | nn.Module) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.losses = [copy.deepcopy(loss) for loss in losses]
        self.of_modules = nn.ModuleList(loss for loss in self.losses if isinstance(loss, nn.Module))

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x)
        return tuple(loss(x, target) for loss in self.losses)


class Segments(nn.Module):
    """A loss over maps of classes, of which some places do not count."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self.body, self.options = nn.Conv2d(2, 4, 3, padding=1), options

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.body(x), target, **self.options)


class VAE(nn.Module):
    """A variational autoencoder (Kingma and Welling, 2013)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 6)
        self.mean, self.log_variance = nn.Linear(6, 2), nn.Linear(6, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return F.mse_loss(self.decoder(z), x), divergence


class Diffusion(nn.Module):
    """Noise is drawn, added by a schedule, and predicted (Ho et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(4, 6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))
        self.register_buffer("kept", torch.tensor([0.9, 0.7, 0.4, 0.1]))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        kept = self.kept[step].unsqueeze(1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return F.mse_loss(self.body(noisy + self.time(step)), noise)


class VQVAE(nn.Module):
    """The nearest code, passed straight through (van den Oord et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 3), nn.Linear(3, 6)
        self.codes = nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        distances = (z.unsqueeze(1) - self.codes.weight).pow(2).sum(-1)
        chosen = self.codes(distances.argmin(1))
        losses = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
        straight = z + (chosen - z).detach()
        return F.mse_loss(self.decoder(straight), x) + losses, self.decoder(straight)


class MovingCodes(VQVAE):
    """Codes that follow their vectors by a moving average, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = None
        self.register_buffer("codebook", torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        nearest = (z.unsqueeze(1) - self.codebook).pow(2).sum(-1).argmin(1)
        chosen = self.codebook[nearest]
        if self.training:
            hits = F.one_hot(nearest, 5).to(z.dtype)
            sums = hits.t() @ z.detach()
            self.codebook.mul_(0.9).add_(0.1 * sums)
        return F.mse_loss(self.decoder(z + (chosen - z).detach()), x) + F.mse_loss(z, chosen)


class Triplet(nn.Module):
    """Three inputs through one network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(self.body(anchor), self.body(positive), self.body(negative), margin=1.0)


class SimSiam(nn.Module):
    """Two views, one predictor, a stopped gradient (Chen and He, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Linear(4, 4)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        z1, z2 = self.encoder(first), self.encoder(second)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return -(F.cosine_similarity(p1, z2.detach()) + F.cosine_similarity(p2, z1.detach())).mean() / 2


class BYOL(nn.Module):
    """A target network without gradients, a copy of the one that trains (Grill et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        predicted = F.normalize(self.predictor(self.online(first)), dim=-1)
        wanted = F.normalize(self.target(second), dim=-1).detach()
        return 2 - 2 * (predicted * wanted).sum(-1).mean()


class Momentum(BYOL):
    """The same, in which the target's parameters require gradients and are cut off by `detach` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.target.requires_grad_(True)


class Contrastive(nn.Module):
    """Both ways between images and texts, by a temperature that is learned (CLIP, Radford et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(6, 4, bias=False), nn.Embedding(9, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        images = F.normalize(self.image(image), dim=-1)
        texts = F.normalize(self.text(text).mean(1), dim=-1)
        scores = self.scale.exp() * images @ texts.t()
        labels = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2


class MultiTask(nn.Module):
    """Two heads and losses over one body, weighted by learned uncertainties (Kendall et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.value = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)
        self.uncertainty = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, label: Tensor, value: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.body(x))
        losses = torch.stack(
            [F.cross_entropy(self.classes(hidden), label), F.smooth_l1_loss(self.value(hidden).squeeze(1), value)]
        )
        total = (losses * torch.exp(-self.uncertainty) + self.uncertainty).sum()
        return {"loss": total, "of_classes": losses[0], "of_value": losses[1]}


class GAN(nn.Module):
    """Both players' losses at once: the discriminator's of a detached sample."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.25), nn.Linear(8, 1))

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        fake = self.generator(noise)
        of_real, of_fake = self.discriminator(real), self.discriminator(fake.detach())
        discriminators = F.softplus(-of_real).mean() + F.softplus(of_fake).mean()
        return F.softplus(-self.discriminator(fake)).mean(), discriminators


class Distillation(nn.Module):
    """A teacher whose outputs are detached, and a student under its soft targets (Hinton et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        wanted = F.softmax(self.teacher(x).detach() / 2, -1)
        return F.kl_div(F.log_softmax(self.student(x) / 2, -1), wanted, reduction="batchmean") * 4


class ActorCritic(nn.Module):
    """A policy gradient with an entropy bonus; the advantage is detached (Mnih et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(state))
        logs = F.log_softmax(self.actor(hidden), -1)
        value = self.critic(hidden).squeeze(1)
        chosen = logs.gather(1, action.unsqueeze(1)).squeeze(1)
        policy = -(chosen * (reward - value).detach()).mean()
        entropy = -(logs.exp() * logs).sum(1).mean()
        return policy + 0.5 * F.mse_loss(value, reward) - 0.125 * entropy


class CTC(nn.Module):
    """Labels without places (Graves et al., 2006)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logs = F.log_softmax(self.body(x), -1).transpose(0, 1)
        samples = x.shape[0]
        return F.ctc_loss(logs, target, torch.full((samples,), 6), torch.full((samples,), 2))


class Gaussian(nn.Module):
    """A mean and a variance for each value."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.gaussian_nll_loss(self.mean(x), target, F.softplus(self.spread(x)) + 0.125)


class Pairs(nn.Module):
    """A loss over pairs of embedded samples."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.loss = nn.Linear(5, 4), loss

    def forward(self, left: Tensor, right: Tensor, alike: Tensor) -> Tensor:
        return self.loss(self.body(left), self.body(right), alike)


def _values() -> Example:
    return torch.randn(4, 5), torch.softmax(torch.randn(4, 4), -1) * 2


def _bits() -> Example:
    return torch.randn(4, 5), (torch.rand(4, 4) < 0.5).float()


def _classes() -> Example:
    return torch.randn(4, 5), torch.randint(0, 4, (4,))


def _signs() -> Example:
    return torch.randn(4, 5), torch.randn(4, 5), torch.tensor([1.0, -1.0, 1.0, -1.0])


def _maps() -> Example:
    target = torch.randint(0, 4, (3, 4, 4))
    target[:, 0, :2] = -100
    return torch.randn(3, 2, 4, 4), target


def _some_ignored() -> Example:
    return torch.randn(4, 5), torch.tensor([0, 3, 1, 2])


def _probabilities() -> Example:
    return torch.randn(4, 5), torch.softmax(torch.randn(4, 4), -1)


WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25])
LOSSES_OF_CLASSES: tuple[Loss | nn.Module, ...] = (
    F.cross_entropy,
    nn.CrossEntropyLoss(WEIGHTS),
    nn.CrossEntropyLoss(ignore_index=3),
    nn.CrossEntropyLoss(reduction="sum"),
    lambda x, y: F.nll_loss(F.log_softmax(x, -1), y, WEIGHTS.to(x.dtype)),
    nn.MultiMarginLoss(),
)
LOSSES_OF_VALUES: tuple[Loss | nn.Module, ...] = (
    F.mse_loss,
    F.l1_loss,
    nn.SmoothL1Loss(beta=0.5),
    nn.HuberLoss(delta=0.75),
    nn.PoissonNLLLoss(),
    lambda x, y: F.kl_div(F.log_softmax(x, -1), y, reduction="batchmean"),
)
LOSSES_OF_BITS: tuple[Loss | nn.Module, ...] = (
    nn.BCEWithLogitsLoss(pos_weight=WEIGHTS),
    lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y),
    lambda x, y: F.soft_margin_loss(x, 2 * y - 1),
    nn.MultiLabelSoftMarginLoss(),
)


CASES = (
    Case(
        "losses of classes",
        "loss",
        lambda: WithLosses(*LOSSES_OF_CLASSES),
        _some_ignored,
        traps=("scalar loss", "several outputs"),
    ),
    Case(
        "losses of values",
        "loss",
        lambda: WithLosses(*LOSSES_OF_VALUES),
        _values,
        traps=("scalar loss", "several outputs"),
        further=True,
    ),
    Case(
        "losses of bits",
        "loss",
        lambda: WithLosses(*LOSSES_OF_BITS),
        _bits,
        traps=("scalar loss", "several outputs"),
        further=True,
    ),
    Case(
        "label smoothing",
        "loss",
        lambda: WithLosses(nn.CrossEntropyLoss(label_smoothing=0.125)),
        _classes,
        traps=("scalar loss", "label smoothing"),
    ),
    Case(
        "label smoothing and weights",
        "loss",
        lambda: WithLosses(nn.CrossEntropyLoss(WEIGHTS, ignore_index=3, label_smoothing=0.25)),
        _some_ignored,
        traps=("scalar loss", "label smoothing"),
    ),
    Case(
        "cross_entropy of probabilities",
        "loss",
        lambda: WithLosses(F.cross_entropy),
        _probabilities,
        traps=("scalar loss",),
    ),
    Case("loss over maps", "segmentation", Segments, _maps, traps=("scalar loss",), further=True),
    Case(
        "loss over maps, smoothed",
        "segmentation",
        lambda: Segments(label_smoothing=0.125),
        _maps,
        traps=("scalar loss", "label smoothing"),
        further=True,
    ),
    Case(
        "loss gaussian nll",
        "loss",
        Gaussian,
        lambda: (torch.randn(4, 5), torch.randn(4, 3)),
        traps=("scalar loss",),
    ),
    Case(
        "loss ctc",
        "speech",
        CTC,
        lambda: (torch.randn(3, 6, 4), torch.tensor([[1, 2], [3, 3], [4, 1]])),
        r"(?i)ctc",
        traps=("scalar loss",),
    ),
    Case(
        "loss cosine embedding",
        "siamese",
        lambda: Pairs(nn.CosineEmbeddingLoss(margin=0.25)),
        _signs,
        traps=("scalar loss", "several inputs"),
        further=True,
    ),
    Case(
        "loss margin ranking",
        "siamese",
        lambda: Pairs(lambda a, b, y: F.margin_ranking_loss(a.sum(1), b.sum(1), y, margin=0.5)),
        _signs,
        traps=("scalar loss",),
        further=True,
    ),
    Case(
        "triplet",
        "siamese",
        Triplet,
        lambda: tuple(torch.randn(4, 6) for _ in range(3)),
        traps=("several inputs", "scalar loss"),
        further=True,
    ),
    Case(
        "SimSiam",
        "self-supervised",
        SimSiam,
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        traps=("detach", "BatchNorm training", "scalar loss"),
        further=True,
    ),
    Case(
        "BYOL",
        "self-supervised",
        BYOL,
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        traps=("detach", "frozen part", EQUAL_VALUES, "scalar loss"),
        further=True,
    ),
    Case(
        "momentum encoder",
        "self-supervised",
        Momentum,
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        traps=("detach", EQUAL_VALUES, "scalar loss"),
    ),
    Case(
        "CLIP loss",
        "contrastive",
        Contrastive,
        lambda: (torch.randn(4, 6), torch.randint(0, 9, (4, 3))),
        traps=("several inputs", "scalar loss"),
        further=True,
    ),
    Case(
        "multi-task",
        "multi-task",
        MultiTask,
        lambda: {"x": torch.randn(4, 6), "label": torch.randint(0, 3, (4,)), "value": torch.randn(4)},
        traps=("dict example", "dict output", "several outputs", "scalar loss"),
        further=True,
    ),
    Case(
        "GAN",
        "GAN",
        GAN,
        lambda: (torch.randn(4, 6), torch.randn(4, 3)),
        traps=("detach", "several outputs", "scalar loss"),
        further=True,
    ),
    Case("distillation", "distillation", Distillation, floats(4, 6), traps=("detach", "scalar loss"), further=True),
    Case(
        "actor and critic",
        "reinforcement",
        ActorCritic,
        lambda: (torch.randn(4, 5), torch.randint(0, 3, (4,)), torch.randn(4)),
        traps=("detach", "several inputs", "scalar loss"),
        further=True,
    ),
    Case("VAE", "VAE", VAE, floats(4, 8), traps=("random samples", "several outputs", "scalar loss")),
    Case(
        "diffusion",
        "diffusion",
        Diffusion,
        lambda: (torch.randn(4, 6), torch.randint(0, 4, (4,))),
        traps=("random samples", "scalar loss"),
        further=True,
    ),
    Case("VQ-VAE", "VQ-VAE", VQVAE, floats(4, 6), traps=("detach", "several outputs", "scalar loss"), further=True),
    Case(
        "moving codes", "VQ-VAE", MovingCodes, floats(4, 6), r"codebook", traps=("buffer changed by forward", "detach")
    ),
)
