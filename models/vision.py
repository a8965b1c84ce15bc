"""Vision models from torchvision: classification, segmentation, detection and optical flow.

Weights are random, so nothing is downloaded. Random weights as torchvision makes them are for training from, not for
comparing outputs: some models answer with zeros, or with the same values for every image. ``make_model`` therefore
ends with ``give_outputs_content``.
"""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssdlite import SSDLiteHead

#: The task of each model that is not an image classifier. Any image classifier of torchvision can be named too.
OTHER_TASKS = {
    "deeplabv3_resnet50": "segmentation",
    "fasterrcnn_resnet50_fpn": "detection",
    "retinanet_resnet50_fpn": "detection",
    "ssdlite320_mobilenet_v3_large": "detection",
    "raft_small": "flow",
}


def task_of(arch):
    """Return what ``arch`` is for; raise ValueError with the choices where it is not known here."""
    classifiers = torchvision.models.list_models(module=torchvision.models)
    if arch not in OTHER_TASKS and arch not in classifiers:
        raise ValueError(f"arch={arch!r} is not offered. Valid choices: {', '.join([*OTHER_TASKS, *classifiers])}")
    return OTHER_TASKS.get(arch, "classification")


def small_image_size(arch):
    """Return the image size that stands for ``image_size=None``: small, and one that ``arch`` takes."""
    return {"maxvit_t": 224, "vit_h_14": 112}.get(arch, 128)  # multiples of what these split an image into


def make_model(arch="resnet50", image_size=224, mode="inference"):
    """Return the torchvision model ``arch`` with random weights, in the mode it will run in."""
    image_size = image_size or small_image_size(arch)
    model = torchvision.models.get_model(arch, weights=None, **builder_arguments(arch, image_size))
    give_outputs_content(model, calibration=example_inputs(arch, image_size, batch_size=4))
    return model.train(mode == "training")


def builder_arguments(arch, image_size):
    """Return the keyword arguments that torchvision's builder of ``arch`` needs besides ``weights``."""
    if arch.startswith("vit_"):
        return {"image_size": image_size}  # its position embedding has one entry a patch
    if arch == "maxvit_t":
        return {"input_size": (image_size, image_size)}  # so has its attention, within windows and between them
    if arch in ("googlenet", "inception_v3"):
        return {"init_weights": True}  # their default, but for a warning
    if task_of(arch) == "segmentation":
        return {"weights_backbone": None}
    if task_of(arch) == "detection":
        return {"weights_backbone": None, **detector_arguments(arch, image_size)}
    return {}


def detector_arguments(arch, image_size):
    """Return what keeps images at the size they come in, and makes the boxes that are found some tens.

    How many they are depends on the weights that ``give_outputs_content`` draws, and on the images.
    """
    if arch == "ssdlite320_mobilenet_v3_large":  # brings every image to 320 x 320 itself
        return {"topk_candidates": 1, "score_thresh": 0.6}  # candidates are counted for each of 90 classes
    sides = {"min_size": image_size * 3 // 4, "max_size": image_size}  # torchvision's default is 800 pixels a side
    if arch == "retinanet_resnet50_fpn":
        return {"topk_candidates": 20, **sides}  # counted for each of 5 sizes of boxes
    # As many proposals as torchvision's own 320-pixel Faster R-CNN has.
    return {"rpn_post_nms_top_n_test": 150, "box_score_thresh": 0.4, **sides}


def give_outputs_content(model, calibration):
    """Make the outputs of a randomly initialised model finite, not constant and different from image to image."""
    for module in model.modules():
        # The head of torchvision's vision transformer starts at zero, and so would every output.
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.trunc_normal_(module.weight, std=0.02)
        # An untrained detector scores all 91 classes about alike, and returns no box at all, or as many as it may. With
        # these weights, and the limits of detector_arguments, it returns some tens, and the images decide how many.
        if isinstance(module, FastRCNNPredictor):
            nn.init.normal_(module.cls_score.weight, std=0.3)
        if isinstance(module, (RetinaNetHead, SSDLiteHead)):
            for layer in module.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.normal_(layer.weight, std=0.03 if isinstance(module, RetinaNetHead) else 0.1)
        # A residual branch as strong as what it adds to makes a deep network magnify rounding errors, a hundredfold in
        # ResNet-50. Training starts these scales at zero, and leaves them small.
        if isinstance(module, resnet.BasicBlock):
            nn.init.constant_(module.bn2.weight, 0.2)
        if isinstance(module, resnet.Bottleneck):
            nn.init.constant_(module.bn3.weight, 0.2)
    calibrate_batch_norm(model, calibration)


def calibrate_batch_norm(model, inputs):
    """Set the running statistics of batch normalisation from ``inputs``, as training would have.

    With the initial ones (mean 0, variance 1) it normalises nothing in inference: activations grow or vanish from layer
    to layer (to 1e-10 in MobileNetV3), and the little that differs between images is lost.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    model.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = None  # a plain average over what is seen
    with torch.no_grad():
        model(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def example_inputs(arch="resnet50", image_size=224, batch_size=2, mode="inference"):
    """Return the inputs of one call.

    classification, segmentation: one tensor (batch, 3, image_size, image_size), normalised as torchvision does.
    detection: a list of images (3, height, width) in [0, 1], the longer side ``image_size``; in training also targets.
    flow: two frames (batch, 3, image_size, image_size) in [-1, 1]; at least 128 pixels a side, a multiple of 8.
    """
    image_size = image_size or small_image_size(arch)
    task = task_of(arch)
    if task == "detection":
        images = landscapes_and_portraits(batch_size, image_size)
        return (images, [random_target(image) for image in images]) if mode == "training" else (images,)
    images = pictures(batch_size, image_size, image_size)
    if task == "flow":
        down, right = torch.randint(-8, 9, (2,)).tolist()
        moved = torch.roll(images, (down, right), dims=(2, 3))
        return (images * 2 - 1, moved * 2 - 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((images - mean.view(3, 1, 1)) / std.view(3, 1, 1),)


def pictures(count, height, width):
    """Return (count, 3, height, width) in [0, 1]: patches of colour with noise, so that no two pictures look alike."""
    patches = F.interpolate(torch.rand(count, 3, 6, 6), size=(height, width), mode="bilinear", align_corners=False)
    return 0.8 * patches + 0.2 * torch.rand(count, 3, height, width)


def landscapes_and_portraits(count, image_size):
    """Return ``count`` images in turn 4:3 and 3:4, the longer side ``image_size``."""
    long, short = image_size, image_size * 3 // 4
    return [pictures(1, *((short, long) if i % 2 == 0 else (long, short)))[0] for i in range(count)]


def random_target(image, boxes=3):
    """Return the objects to find in ``image`` (3, height, width): boxes (boxes, 4) as x1, y1, x2, y2, and labels."""
    height, width = image.shape[1:]
    size = torch.tensor([width, height])
    corner = torch.rand(boxes, 2) * size / 2
    extent = (0.2 + 0.3 * torch.rand(boxes, 2)) * size
    return {"boxes": torch.cat([corner, corner + extent], dim=1), "labels": torch.randint(1, 91, (boxes,))}
