"""Denoise a picture that is larger than the images which were trained on.

Learns 300 digits of 16 x 16 pixels at every noise level, then denoises a sheet of 5 x 3 others, in
tiles that overlap, without being told how much noise there is. Writes clean.png, noisy.png and
denoised.png.
Full: about a minute on one core; --quick: a few steps.
"""

import sys
import torch

from fokker.data.images import read_images
from fokker.data.picture import save_png, to_float
from fokker.images.denoise import denoise_picture
from fokker.networks import UNetEnergy
from fokker.objectives import LevelDCD, Limit, LogUniform
from pathlib import Path

torch.manual_seed(0)
folder = Path(__file__).parents[1] / "tests/data/mnist-mini"
digits, others = (read_images(folder, split, size=16) for split in ("train", "test"))

energy = UNetEnergy(channels=1, width=8, blocks=1, attention=(), head=8)
objective = LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True)
optimizer = torch.optim.Adam(energy.parameters(), 5e-3)
generator = torch.Generator().manual_seed(0)
for _ in range(2 if "--quick" in sys.argv else 150):
    loss = objective(energy, digits.batch(32, generator)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

sheet = to_float(others.pixels[:15]).reshape(3, 5, 1, 16, 16).permute(2, 0, 3, 1, 4)
clean = sheet.reshape(1, 48, 80)
noisy = clean + 0.5 * torch.randn(clean.shape, generator=generator)
denoised, sigma = denoise_picture(energy, noisy, digits.shape)
for name, picture in (("clean", clean), ("noisy", noisy), ("denoised", denoised)):
    save_png(Path(f"{name}.png"), picture)
error = lambda x: float((x - clean).square().mean().sqrt())
print(f"noise {sigma:.2f} (estimated; 0.5 was added)")
print(f"RMSE {error(noisy):.3f} before, {error(denoised):.3f} after")
