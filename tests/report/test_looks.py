import itertools

import numpy as np

from depthbench.report.looks import LOOKS, looks
from depthbench.verdict.rows import DESIGNS

# Severity 1.0 of Machado, Oliveira and Fernandes (2009), on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
RGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, vision):
    """CIE L*a*b* of a hex colour as seen with `vision`."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = RGB_TO_XYZ @ np.clip(np.array(vision) @ linear, 0, 1) / (0.9505, 1.0, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_pair_of_designs_stays_apart_for_colour_blind_readers():
    for name, vision in VISION.items():
        for (a, first), (b, second) in itertools.combinations(LOOKS.items(), 2):
            distance = np.linalg.norm(lab(first.colour, vision) - lab(second.colour, vision))
            assert distance > 12, (name, a, b, distance)  # 2.3 is just noticeable


def test_designs_differ_without_any_colour():
    assert len({look.marker for look in LOOKS.values()}) == len(LOOKS) == len(DESIGNS)


def test_a_design_looks_the_same_whatever_stands_beside_it():
    assert looks(["mine", "hc", "preln"])["hc"] == looks(["hc"])["hc"] == LOOKS["hc"]


def test_spare_looks_do_not_repeat():
    labels = [f"mine{i}" for i in range(200)]
    assert len(set(looks(labels).values()) | set(LOOKS.values())) == 200 + len(LOOKS)
