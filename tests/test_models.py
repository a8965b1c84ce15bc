"""The models that come with tracebench: they build offline, run, and their outputs are worth comparing."""

import functools
import inspect
from pathlib import Path

import pytest
import torch
import torchvision
from omegaconf import OmegaConf
from torch.utils._pytree import tree_leaves

from tracebench.case import Case, ModelSpec
from tracebench.errors import RequestError
from tracebench.subject import Subject, import_file, load

ROOT = Path(__file__).parents[1]
CONFIGS = {path.stem: path for path in sorted((ROOT / "configs" / "model").glob("*.yaml"))}
MODELS = [name for name in CONFIGS if name not in ("file", "torchvision")]
VISION = ["resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16", "swin_t"]
OTHER = ["deeplabv3_resnet50", "raft_small", "gpt", "encoder"]
#: The losses of each detector, which it answers with in training.
DETECTORS = {
    "fasterrcnn_resnet50_fpn": {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"},
    "retinanet_resnet50_fpn": {"classification", "bbox_regression"},
    "ssdlite320_mobilenet_v3_large": {"classification", "bbox_regression"},
}

#: Options that make each model cheap. The architecture, and so what is tested, stays.
SMALL = {
    **{name: {"image_size": 64} for name in VISION},
    "deeplabv3_resnet50": {"image_size": 64},
    **{name: {"image_size": 128} for name in DETECTORS},
    "raft_small": {"image_size": 128},  # its least
    "gpt": {"layers": 2, "sequence_length": 16},
    "encoder": {"layers": 2, "sequence_length": 16},
}


@pytest.fixture(autouse=True, scope="module")
def single_thread():
    """Run on one thread: calls this small are no faster on more, and far slower where other processes want them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    """Name each model in turn; the module scope makes pytest run all tests of one model before those of the next."""
    return request.param


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Fail where a model would download its weights."""

    def refuse(url, *args, **kwargs):
        raise AssertionError(f"{url} would be downloaded")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)


def config(name):
    """Return the config of a model as a dict, paths resolved as the command line does."""
    text = CONFIGS[name].read_text().replace("${models_dir:}", str(ROOT / "models"))
    return OmegaConf.to_container(OmegaConf.create(text))


@functools.lru_cache(maxsize=3)
def build(name, seed=0, mode="auto", batch_size=None, small=True) -> Subject:
    """Return the subject of a config, small unless told; a subject is never changed, so tests can share it."""
    return build_with(name, SMALL.get(name, {}) if small else {}, seed=seed, mode=mode, batch_size=batch_size)


def build_with(name, options, **case):
    settings = config(name)
    spec = ModelSpec(settings["name"], settings["path"], {**settings["options"], **options})
    return load(Case(spec, frontend="eager", device="cpu", **case))


def run(subject, inputs=None):
    """Return the output of one eager call, of a model of its own."""
    model = subject.fresh_model()
    inputs = subject.fresh_inputs(inputs)
    with subject.grad_mode():
        return model(*inputs.args, **inputs.kwargs)


@functools.lru_cache(maxsize=3)
def output_of(name, seed=0):
    """Return the output for the example inputs; tests share it, as none changes it."""
    return run(build(name, seed=seed))


def equal(left, right):
    """Return whether two nested outputs, inputs or lists of tensors are bitwise equal."""
    left, right = tree_leaves(left), tree_leaves(right)
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def floating(output):
    return [leaf for leaf in tree_leaves(output) if leaf.is_floating_point()]


def test_every_expected_model_has_a_config():
    assert {*VISION, *OTHER, *DETECTORS, "file", "torchvision"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_has_the_form_of_the_schema(name):
    settings = config(name)

    assert {key: type(value) for key, value in settings.items()} == {
        "name": str,
        "summary": str,
        "path": str,
        "options": dict,
    }
    assert settings["name"] == ("${.options.arch}" if name == "torchvision" else name)
    assert CONFIGS[name].read_text().startswith("# ")


def test_config_shows_every_option(name):
    module = import_file(Path(config(name)["path"]))
    parameters = {p for f in (module.make_model, module.example_inputs) for p in inspect.signature(f).parameters}

    assert set(config(name)["options"]) == parameters - {"mode", "batch_size"}


def test_file_config_leaves_the_path_to_the_user():
    assert config("file")["path"] == "???"
    assert config("file")["options"] == {}


def test_model_runs_at_its_default_size(name):
    subject = build(name, small=False)
    output = tree_leaves(run(subject))

    assert output
    assert all(leaf.isfinite().all() for leaf in output)
    assert not subject.model.training
    assert subject.batch_size == 2


def test_same_seed_gives_the_same_model_inputs_and_outputs(name):
    first, second = build(name), build_with(name, SMALL.get(name, {}))

    assert equal(list(first.model.state_dict().values()), list(second.model.state_dict().values()))
    assert equal(first.example.args, second.example.args)
    assert equal(output_of(name), run(second))


def test_another_seed_gives_another_model_inputs_and_outputs(name):
    first, second = build(name), build(name, seed=1)

    assert not equal(list(first.model.parameters()), list(second.model.parameters()))
    assert not equal(first.example.args, second.example.args)
    assert not equal(output_of(name), output_of(name, seed=1))


def test_outputs_vary_within_and_between_inputs(name):
    """Well above rounding: an output that hardly varies would match whatever a capture got wrong."""
    subject = build(name)
    output = floating(output_of(name))
    other = floating(run(subject, subject.redraw(123)))

    assert output
    for leaf, redrawn in zip(output, other, strict=True):
        assert leaf.isfinite().all()
        spread = leaf.std().item()
        assert spread > 1e-3
        assert leaf.shape != redrawn.shape or (leaf - redrawn).std().item() > 0.01 * spread


def test_samples_of_a_batch_differ(name):
    output = output_of(name)
    if name in DETECTORS:
        pairs = [(output[0]["scores"], output[1]["scores"])]
    else:
        pairs = [(leaf[0], leaf[1]) for leaf in tree_leaves(output)]

    assert not any(torch.equal(left, right) for left, right in pairs)


def test_batch_size_is_honoured(name):
    subject = build(name, batch_size=3)

    assert subject.batch_size == 3
    for size, inputs in [(3, subject.example), (1, subject.with_batch(1))]:
        output = run(subject, inputs)
        if name in DETECTORS:
            assert len(output) == size
        else:
            assert {leaf.shape[0] for leaf in tree_leaves(output)} == {size}


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("seed", [0, 1])
def test_detector_finds_a_number_of_boxes_that_depends_on_the_images(detector, seed):
    subject = build(detector, seed=seed)
    outputs = [run(subject, subject.redraw(seed)) for seed in range(2)]
    counts = {len(found["boxes"]) for output in outputs for found in output}

    assert min(counts) > 0
    assert max(counts) < 100  # the most that torchvision's detectors return, or less
    assert len(counts) > 1


@pytest.mark.parametrize("detector", DETECTORS)
def test_detector_takes_images_of_different_sizes(detector):
    (images,) = build(detector).example.args

    assert [tuple(image.shape) for image in images] == [(3, 96, 128), (3, 128, 96)]
    assert all(image.min() >= 0 and image.max() <= 1 for image in images)


@pytest.mark.parametrize("name", ["resnet18", "gpt", "encoder", *DETECTORS])
def test_training_gives_every_parameter_a_finite_gradient(name):
    subject = build(name, mode="training")
    model = subject.fresh_model()
    loss = sum(leaf.square().mean() for leaf in tree_leaves(model(*subject.fresh_inputs().args)))
    loss.backward()

    assert model.training
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, grad in gradients.items() if grad is None or not grad.isfinite().all()] == []
    assert any(grad.any() for grad in gradients.values())


@pytest.mark.parametrize("detector", DETECTORS)
def test_detector_in_training_answers_with_losses(detector):
    subject = build(detector, mode="training")
    losses = subject.fresh_model()(*subject.fresh_inputs().args)

    assert set(losses) == DETECTORS[detector]
    assert all(loss.isfinite() and loss > 0 for loss in losses.values())


def test_decoder_does_not_look_ahead():
    subject = build("gpt")
    model = subject.fresh_model()
    (tokens,) = subject.fresh_inputs().args
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 8192
    with torch.no_grad():
        before, after = model(tokens), model(changed)

    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-2)


def test_encoder_ignores_padding_and_nothing_else():
    subject = build("encoder")
    model = subject.fresh_model()
    tokens, mask = subject.fresh_inputs().args
    assert mask.any(dim=1).all()
    assert not mask.all(dim=1).any()
    with torch.no_grad():
        before = model(tokens, mask)
        padding_changed = model(tokens.where(mask, 7), mask)
        mask_as_integers = model(tokens, mask.long())
        unmasked = model(tokens, torch.ones_like(mask))

    torch.testing.assert_close(before["pooled"], padding_changed["pooled"])
    assert torch.equal(before["tokens"], mask_as_integers["tokens"])
    assert not torch.allclose(before["tokens"][mask], unmasked["tokens"][mask], atol=1e-2)


@pytest.mark.parametrize("name", ["gpt", "encoder"])
def test_size_of_a_language_model_is_set_by_options(name):
    options = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 50, "context": 12, "sequence_length": 10}
    subject = build_with(name, options, batch_size=3)
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(run(subject))]

    assert len(subject.model.blocks) == 1
    assert shapes == ([(3, 10, 50)] if name == "gpt" else [(3, 10, 32), (3, 32)])
    assert subject.example.args[0].max() < 50


@pytest.mark.parametrize(
    ("arch", "kind", "image_size"),
    [("squeezenet1_1", "SqueezeNet", None), ("googlenet", "GoogLeNet", 64), ("maxvit_t", "MaxVit", None)],
)
def test_any_classifier_of_torchvision_can_be_named(arch, kind, image_size):
    subject = build_with("torchvision", {"arch": arch, "image_size": image_size})
    output = run(subject)

    assert type(subject.model).__name__ == kind
    assert subject.example.args[0].shape[-1] == (image_size or {"maxvit_t": 224}.get(arch, 128))
    assert output.isfinite().all()
    assert not torch.equal(output[0], output[1])


@pytest.mark.parametrize("arch", ["vit_b_16", "vit_b_32", "vit_h_14", "vgg11", "inception_v3", "densenet121", "swin_t"])
def test_an_image_size_left_open_is_one_the_model_takes(arch):
    vision = import_file(ROOT / "models" / "vision.py")
    size = vision.small_image_size(arch)
    with torch.device("meta"):  # shapes alone: some are large
        model = torchvision.models.get_model(arch, weights=None, **vision.builder_arguments(arch, size)).eval()
        assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)
    assert size <= 128


def test_every_classifier_of_torchvision_is_in_its_sweep():
    """Names that only a newer torchvision knows may be there too: with an older one those cases are refused."""
    experiment = OmegaConf.load(ROOT / "configs" / "experiment" / "classifiers.yaml")
    swept = experiment.hydra.sweeper.params["model.options.arch"].split(", ")

    assert len(swept) == len(set(swept))
    missing = set(torchvision.models.list_models(module=torchvision.models)) - set(swept)
    assert not missing, f"add to configs/experiment/classifiers.yaml: {', '.join(sorted(missing))}"


def test_unknown_option_is_refused_with_the_valid_ones(name):
    with pytest.raises(RequestError, match="no option 'colour'") as refusal:
        build_with(name, {"colour": "red"})

    assert all(f"model.options.{option}" in str(refusal.value) for option in config(name)["options"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"arch": "resnet19"}, "'resnet19' is not offered. Valid choices: .*raft_small.*resnet18"),
        ("gpt", {"arch": "bert"}, "'bert' is not offered. Valid choices: gpt, encoder"),
        ("gpt", {"sequence_length": 300}, "sequence_length=300 exceeds context=256"),
        ("gpt", {"width": 100}, "width=100 cannot be split among heads=8"),
        ("vit_b_16", {"image_size": 100}, "indivisible by patch size"),
    ],
)
def test_impossible_option_value_is_refused(name, options, message):
    with pytest.raises(RequestError, match=message):
        build_with(name, options)
