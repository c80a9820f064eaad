"""Networks of other packages and of one's own, from the command line: trained, shown, scored, asked, resumed."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import covey
from covey.cli import reading
from covey.cli.main import main

WORDS = ("good", "bad", "fine", "poor", "film", "book", "the", "a", "was")
OWN = """
import torch
from torch import nn

def make(classes, features, hidden=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))

class Net(nn.Module):
    def __init__(self, num_classes, in_chans):
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 4, 3)
        self.head = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))

def needs(something):
    return None

def fails(classes):
    return nn.Linear(classes, undefined)

def wrong():
    return 3

number = 3
"""
QUICK = ("--epochs", "1", "--no-progress", "--samples", "60", "--batch", "32", "--run", "loop")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own; returns exit code, output and complaints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def call(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def file(tmp_path):
    """A file of networks of one's own."""
    (tmp_path / "nets.py").write_text(OWN)
    return tmp_path / "nets.py"


@pytest.fixture
def bert(tmp_path):
    """A tiny BERT with a tokenizer, as Hugging Face stores them."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    vocabulary = {word: k for k, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    single = "[CLS] $A [SEP]"
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(
        tmp_path / "bert"
    )
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    rows = [f"{i},the {WORDS[4 + i % 2]} was {WORDS[i % 4]},{'pn'[i % 2]}" for i in range(80)]
    (tmp_path / "reviews.csv").write_text("\n".join(["id,review,label", *rows]))
    return tmp_path / "bert"


def test_a_function_of_ones_own(run, file):
    train = ("train", "multi-head", "--members", 2, "--data", "digits", "--network", "nets.py:make", *QUICK)
    code, out, err = run(*train, "--network-option", "hidden=6", "--folder", "run")
    assert code == 0, err
    assert "2 members" in out
    stored = json.loads((file.parent / "run" / "settings.json").read_text())
    assert stored["network"]["network"] == f"{file.resolve()}:make"
    np.save("x.npy", np.zeros((2, 8, 8), np.uint8))
    for words in (
        ("evaluate", "run", "--no-report"),
        ("predict", "run", "x.npy"),
        ("show", "run", "--tensors"),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert f"only run if you name it again: --network {file.resolve()}:make" in err
        code, out, err = run(*words, "--network", "nets.py:make")
        assert code == 0, err
        assert out
    code, _, err = run(*train, "--network-option", "hidden=6", "--folder", "run", "--resume")
    assert code == 0, err
    file.write_text(OWN + "\n# another line\n")
    code, _, err = run("predict", "run", "x.npy", "--network", "nets.py:make")
    assert code == 0
    assert "was changed since run was trained with it" in err
    code, _, err = run("predict", "run", "x.npy", "--network", "nets.py:Net")
    assert code == 2
    assert "takes no 'hidden'" in err
    file.write_text(OWN.replace("nn.ReLU(), ", "nn.ReLU(), nn.Linear(hidden, hidden), "))
    code, _, err = run("predict", "run", "x.npy", "--network", "nets.py:make")
    assert code == 2
    assert "stored for another architecture" in err


def test_a_class_of_ones_own_in_a_comparison(run, file, monkeypatch):
    monkeypatch.setattr("covey.report.write", lambda *_, **__: "page")
    words = (
        "compare",
        "--methods",
        "single:network=nets.py:Net",
        "multi-head",
        "--network",
        "nets.py:make",
        *QUICK,
    )
    code, out, err = run(*words, "--folder", "both")
    assert code == 0, err
    assert out.count("done") == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nets.py", "names a file and no function in it: write nets.py:FUNCTION"),
        ("nets.py:mak", "nets.py has no function 'mak'; the nearest names are 'make'"),
        ("nets.py:number", "is no function or class but int"),
        ("nets.py:needs", "needs 'something', which covey does not know: it passes 'outputs', 'classes'"),
        ("nets.py:fails", "nets.py:fails failed in line 21: NameError: name 'undefined' is not defined"),
        ("nets.py:wrong", "should return a torch.nn.Module; it returned int"),
        ("other.py:make", "there is no file .*other.py"),
        ("broken.py:make", "cannot be run in line 1: SyntaxError"),
        ("torch:resnet", "there is no network 'torch:resnet': a network is a name of the zoo"),
        ("hf:nowhere", "hf:nowhere cannot be read.*hub's cache"),
    ],
)
def test_networks_that_there_are_not(run, file, name, expected):
    (file.parent / "broken.py").write_text("def make(:\n")
    code, out, err = run("train", "single", "--network", name, *QUICK)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert re.search(expected, err), err


def test_an_option_that_a_function_does_not_take(run, file):
    words = ("train", "single", "--network", "nets.py:make", "--network-option", "depth=2", *QUICK)
    code, _, err = run(*words)
    assert code == 2
    assert "takes no 'depth'" in err


def test_a_recipe_does_not_run_code(run, file):
    recipe = file.parent / "r.toml"
    recipe.write_text(f'method = "single"\n[network]\nnetwork = "{file}:make"\n')
    code, _, err = run("train", "--recipe", "r.toml", *QUICK)
    assert code == 2
    assert "only run if you name it" in err
    code, _, err = run("compare", "--recipe", "r.toml", *QUICK)
    assert code == 2
    assert "only run if you name it" in err
    code, _, err = run("reproduce", "r.toml")
    assert code == 2
    assert "only run if you name it" in err
    code, _, err = run("train", "--recipe", "r.toml", "--network", "nets.py:make", *QUICK)
    assert code == 0, err


def test_timm(run, timm, tmp_path, monkeypatch):
    words = (
        "train",
        "batch-ensemble",
        "--members",
        2,
        "--data",
        "digits",
        "--network",
        "timm:test_vit",
        *QUICK,
    )
    code, out, err = run(*words, "--network-option", "patch_size=4", "--folder", "run")
    assert code == 0, err
    np.save("x.npy", np.zeros((2, 8, 8), np.uint8))
    code, out, err = run("predict", "run", "x.npy")
    assert code == 0, err
    assert len(list(csv.DictReader(out.splitlines()))) == 2
    code, out, err = run("show", "run")
    assert code == 0, err
    assert "timm:test_vit" in out
    assert covey.load("run/ensemble").member(0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_timms_mistakes(run, timm):
    for name, expected in (
        ("timm:resnet81", "timm has no network 'resnet81'; the nearest names are 'resnet"),
        ("timm:hf-hub:somebody/something", "timm has no network"),
    ):
        code, _, err = run("train", "single", "--network", name, *QUICK)
        assert code == 2
        assert expected in err
    words = ("train", "single", "--network", "timm:test_resnet", *QUICK)
    code, _, err = run(*words, "--network-option", "checkpoint_path=evil.pth")
    assert code == 2
    assert "checkpoint_path is no option" in err
    words += ("--network-option", "pretrained=true")
    code, _, err = run(*words, "--image-mean", "0.45", "--image-std", "0.22")
    assert code == 2
    assert "hub's cache on this machine, and covey downloads nothing" in err
    code, _, err = run("train", "single", "--data", "iris", "--network", "timm:test_resnet", *QUICK)
    assert code == 2
    assert "timm's networks take images" in err


def test_timms_weights_come_from_the_cache(timm, tmp_path, monkeypatch):
    from covey.zoo import names

    trained = timm.create_model("test_resnet", num_classes=1000)
    with torch.no_grad():
        trained.conv1[0].weight.fill_(0.125)
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda repo, name, **_: str(tmp_path / "model.safetensors")
    )
    options = {"pretrained": True}
    network = names.build("timm:test_resnet", shape=(3, 32, 32), outputs=7, options=options)
    assert bool((network.conv1[0].weight == 0.125).all())
    assert network.get_classifier().out_features == 7
    assert "pretrained" not in network.covey_zoo["arguments"]


def test_images_are_normalised_as_timms_weights_want(run, timm, tmp_path, monkeypatch):
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "model.safetensors")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda repo, name, **_: str(tmp_path / "model.safetensors")
    )
    images, labels = np.zeros((20, 3, 32, 32), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "colours.npz", x=images + labels[:, None, None, None].astype(np.uint8), y=labels)
    words = ("train", "single", "--data", "colours.npz", "--network", "timm:test_vit", *QUICK)
    code, _, err = run(*words, "--network-option", "pretrained=true", "--folder", "run")
    assert code == 0, err
    facts = timm.models.get_pretrained_cfg("test_vit")
    assert "images are normalised as timm:test_vit wants them: mean 0.5 0.5 0.5, std 0.5 0.5 0.5 " in err
    wanted = {"mean": list(facts.mean), "std": list(facts.std)}
    assert json.loads((tmp_path / "run/settings.json").read_text())["record"]["normalisation"] == wanted
    code, _, err = run(*words, "--folder", "fresh")  # random weights have no wishes
    assert code == 0, err
    assert "images are normalised" not in err


def test_grey_images_are_normalised_as_the_mean_over_colours(run, timm, tmp_path, monkeypatch):
    trained = timm.create_model("test_efficientnet")
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda repo, name, **_: str(tmp_path / "model.safetensors")
    )
    facts = timm.models.get_pretrained_cfg("test_efficientnet")
    colours = torch.tensor([facts.mean, facts.std])
    words = (
        "train",
        "single",
        "--data",
        "digits",
        "--network",
        "timm:test_efficientnet",
        *QUICK,
        "--lr",
        "1e-9",
    )
    words += ("--network-option", "pretrained=true")
    code, _, err = run(*words, "--folder", "run")
    assert code == 0, err
    assert "they are normalised with the mean over the colours, mean 0.449, std 0.226 (--image-mean" in err
    stored = json.loads((tmp_path / "run/settings.json").read_text())["record"]["normalisation"]
    assert [*stored["mean"], *stored["std"]] == pytest.approx(colours.mean(1).tolist())
    # timm adds the weights of the colours up, so the first layer sees nearly what three equal colours would show it
    grey = torch.rand(2, 1, 8, 8)
    ours = covey.load("run/ensemble").member(0).conv_stem((grey - 0.449) / 0.226)
    mean, std = (row[:, None, None] for row in colours)
    theirs = trained.conv_stem((grey.expand(2, 3, 8, 8) - mean) / std)
    assert (ours - theirs).square().mean().sqrt() < 0.2 * theirs.std()  # the colours differ a little
    assert run("evaluate", "run", "--no-report")[0] == 0


def test_texts_in_a_table(run, bert):
    words = ("train", "low-rank", "--members", 2, "--rank", 2, "--data", "reviews.csv", "--target", "label")
    words += ("--text", "review", "--network", f"hf:{bert}", "--lr", "0.01", *QUICK)
    code, out, err = run(*words, "--folder", "run")
    assert code == 0, err
    assert "start anew: classifier.bias, classifier.weight" in err
    record = json.loads((bert.parent / "run" / "settings.json").read_text())["record"]
    assert record["shape"] == [6]  # [CLS] the film was good [SEP]
    code, out, err = run("evaluate", "run", "--no-report")
    assert code == 0, err
    (bert.parent / "new.txt").write_text("the film was good\n\na very strange word\n")
    code, out, err = run("predict", "run", "new.txt")
    assert code == 0, err
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["input"] for row in rows] == ["0", "1", "2"]
    assert set(rows[0]) >= {"p(n)", "p(p)"}
    again = run("predict", "run", "reviews.csv")
    assert again[0] == 0, again[2]
    (bert / "config.json").unlink()  # what a run needs of it is stored with the run
    assert run("predict", "run", "new.txt")[1] == out


LOUD = {"num_channels": 1, "initializer_range": 0.3}  # so that members differ after one epoch
PICTURES = {
    "vit": ("ViT", {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_attention_heads": 2}),
    "convnext": ("ConvNext", {"patch_size": 2, "num_stages": 2, "hidden_sizes": [4, 8], "layer_scale_init_value": 1.0}),
    "resnet": ("ResNet", {"embedding_size": 4, "hidden_sizes": [4, 8]}),
}  # fmt: skip
FURTHER = {
    "vit": {"intermediate_size": 16, "num_hidden_layers": 1},
    "convnext": {"depths": [1, 1]},
    "resnet": {"depths": [1, 1]},
}


def pictures(name, place, **options):
    """A tiny classifier of images with three classes, as Hugging Face stores it: without a preprocessor."""
    transformers = pytest.importorskip("transformers")
    kind, sizes = PICTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **{**LOUD, **sizes, **FURTHER[name], **options}, num_labels=3
    )
    network = getattr(transformers, f"{kind}ForImageClassification")(config)
    network.save_pretrained(place)
    return network


@pytest.mark.parametrize("name", PICTURES)
def test_hugging_face_classifiers_of_images(run, tmp_path, name):
    stored = pictures(name, tmp_path / name).state_dict()
    words = ("train", "low-rank", "--members", 2, "--rank", 2, "--data", "digits", "--network", f"hf:{name}")
    code, out, err = run(*words, *QUICK, "--lr", 0.5, "--folder", "run")
    assert code == 0, err
    assert "start anew: classifier" in err  # it had three classes, and digits are ten
    base = covey.load("run/ensemble").parts["low_rank"].theta
    assert any(torch.equal(tensor, stored[n.removeprefix("model.")]) for n, tensor in base.items())
    np.save("x.npy", np.zeros((2, 8, 8), np.uint8))
    code, out, err = run("predict", "run", "x.npy")
    assert code == 0, err
    assert len(list(csv.DictReader(out.splitlines()))) == 2
    assert run("evaluate", "run", "--no-report")[0] == 0


def test_images_are_normalised_as_the_classifier_wants(run, tmp_path):
    pictures("vit", tmp_path / "vit")
    said = {"do_normalize": True, "image_mean": [0.25], "image_std": [0.5], "rescale_factor": 1 / 510}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(said))
    words = ("train", "single", "--data", "digits", "--network", "hf:vit", *QUICK)
    code, _, err = run(*words, "--folder", "run")
    assert code == 0, err
    assert "images are normalised as hf:vit wants them: mean 0.5, std 1 " in err
    wanted = {"mean": [0.5], "std": [1.0]}  # of intensities, where the file's are of their halves
    assert json.loads((tmp_path / "run/settings.json").read_text())["record"]["normalisation"] == wanted
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8), np.uint8)
    np.save("x.npy", pixels)
    out = run("predict", "run", "x.npy")[1]
    inputs = torch.from_numpy(pixels)[:, None] / 255 - 0.5
    probs = covey.load("run/ensemble").predict(inputs).max_prob
    assert [float(row["probability"]) for row in csv.DictReader(out.splitlines())] == pytest.approx(
        probs.tolist()
    )
    evaluated = reading.read_data(tmp_path / "run").normalisation
    assert (evaluated.mean, evaluated.std) == ((0.5,), (1.0,))
    code, _, err = run(*words, "--image-mean", 0.1, "--image-std", 0.2, "--folder", "run", "--resume")
    assert code == 2
    assert "Go on with --image-mean 0.5 --image-std 1.0" in err
    code, _, err = run(*words, "--image-mean", 0.1, 0.2, "--image-std", 0.2, "--folder", "other")
    assert code == 2
    assert "the images have 1 channels" in err
    said["image_std"] = [0]
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(said))
    code, _, err = run(*words, "--folder", "other")
    assert code == 2
    assert "preprocessor_config.json" in err


def test_images_that_a_classifier_does_not_take(run, tmp_path):
    pictures("vit", tmp_path / "colour", num_channels=3)
    pictures("vit", tmp_path / "large", image_size=16)
    words = ("train", "low-rank", "--rank", 2, "--data", "digits", *QUICK)
    code, _, err = run(*words, "--network", "hf:colour")
    assert code == 2
    assert "takes images of 3 channels and the data's have 1" in err
    code, _, err = run(*words, "--network", "hf:large")
    assert code == 2
    assert re.search(r"rejects the example.*\(2, 1, 8, 8\).*doesn't match model \(16\*16\)", err)


def test_padding_does_not_change_an_answer(bert):
    from covey.zoo import names

    tokens = {"pad": 0, "vocabulary": 13}
    network = names.build(f"hf:{bert}", shape=(6,), outputs=2, options={}, tokens=tokens).eval()
    short = torch.tensor([[2, 4, 8, 3]])
    padded = torch.nn.functional.pad(short, (0, 2))
    torch.testing.assert_close(network(short), network(padded))
    assert network(torch.zeros(1, 4, dtype=torch.long)).isfinite().all()  # nothing but padding


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--network", "hf:bert"),
            "say which column holds the texts .--text COLUMN.; there are 'id', 'review'",
        ),
        (
            ("--network", "hf:bert", "--text", "reviews"),
            "has no column 'reviews'; the nearest names are 'review'",
        ),
        (("--text", "review"), "texts need a tokenizer"),
        (("--text", "review", "--tokenizer", "bert"), "needs a network of Hugging Face"),
        (
            ("--network", "hf:bert", "--text", "review", "--tokenizer", "none"),
            "no tokenizer that can be read in none",
        ),
        (
            ("--network", "hf:bert", "--text", "review", "--network-option", "max_position_embeddings=4"),
            "--length 4",
        ),
        (
            ("--network", "hf:bert", "--text", "review", "--network-option", "vocab_size=5"),
            "13 tokens .* knows 5",
        ),
        (("--network", "hf:bert", "--text", "review", "--network-option", "depth=4"), "no setting 'depth'"),
    ],
)
def test_texts_mistakes(run, bert, words, expected):
    code, out, err = run("train", "single", "--data", "reviews.csv", "--target", "label", *words, *QUICK)
    assert (code, out) == (2, "")
    assert re.search(expected, err), err


def test_pickled_weights_are_refused(run, bert):
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    words = ("train", "single", "--data", "reviews.csv", "--target", "label", "--network", "hf:bert")
    code, _, err = run(*words, "--text", "review", *QUICK)
    assert code == 2
    assert "holds pytorch_model.bin and no .safetensors file" in err


def test_a_stored_name_reads_no_file(bert, timm):
    from covey.errors import OptionError
    from covey.zoo import names

    with pytest.raises(OptionError, match="pretrained is no option"):
        names.rebuild({"name": "timm:test_resnet", "arguments": {"pretrained": True}})
    config = json.dumps({"model_type": "bert", "_attn_implementation": "somebody/kernel"})
    with pytest.raises(OptionError, match="which would be fetched as code"):
        names.rebuild({"name": "hf:x", "arguments": {"kind": "text", "config": config}})
    with pytest.raises(OptionError, match="without a configuration"):
        names.rebuild({"name": f"hf:{bert}", "arguments": {"kind": "text"}})
    with pytest.raises(OptionError, match="there is no network"):
        names.rebuild({"name": "nets.py:make", "arguments": {}})


def test_networks_are_listed_and_measured(run, file):
    code, out, _ = run("networks")
    assert code == 0
    assert re.search(r"resnet-18 .* 11.7 M +1.81 G", out)
    assert "FILE.py:FUNCTION" in out
    code, out, err = run("networks", "nets.py:make", "--shape", 1, 2, 2, "--outputs", 3)
    assert code == 0, err
    assert "parameters     67" in out  # (4 + 1) x 8 + (8 + 1) x 3
    assert "multiply-adds  56 a sample" in out  # 4 x 8 + 8 x 3
    assert run("networks", "resnet-19")[0] == 2
