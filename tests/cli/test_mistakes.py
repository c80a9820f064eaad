"""A hundred and more mistakes at the command line: each is one line that speaks of flags and files, and exit code 2.

Every mistake stands in a table: what is typed, and words of the answer. All of them go through the same checks.
"""

import re
import shlex
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.cli.main import main

CLASSES = "a;b;note;y\n" + "".join(f"{i};{i % 4};remark {i:030d};{'xz'[i % 2]}\n" for i in range(80))
NUMBERS = "a,b,y\n" + "".join(f"{i},{i % 4},{i * 1.5}\n" for i in range(80))
NETS = """
from torch import nn

def make(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, outputs))

def fails():
    raise ValueError("no luck")

def three():
    return 3
"""

TRAIN = [
    ("train", "covey train takes a method, or a recipe file"),
    ("train singel", "there is no method 'singel'; the nearest names are 'single'"),
    ("train single --epoch 3", "has no flag --epoch; the nearest names are '--epochs'"),
    ("train single --epochs", "--epochs needs a value|--epochs"),
    ("train single --quantiles --epochs 1", "--quantiles takes levels between 0 and 1 that rise.*got none"),
    ("train single --epochs many", "--epochs is a whole number; got 'many'"),
    ("train single --epochs 1.5", "--epochs is a whole number; got '1.5'"),
    ("train single --epochs 0", "epochs is a whole number of at least 1; got 0"),
    ("train single --epochs -1", "epochs is a whole number of at least 1; got -1"),
    ("train single --lr fast", "--lr is a number; got 'fast'"),
    ("train single --lr 0", "error: --lr is above 0; got 0"),
    ("train single --lr nan", "lr is above 0; got nan"),
    ("train single --batch 0", "error: --batch is a whole number of at least 1"),
    ("train single --momentum 1.5", "momentum is at least 0 and below 1"),
    ("train single --decay -1", "decay is at least 0"),
    ("train single --ema 1.5", "ema is at least 0 and below 1"),
    ("train single --average 99", "average is a moment before the end of 20 epochs"),
    ("train single --patience 0", "patience is a whole number of at least 1"),
    ("train single --member-chunk 0", "--member-chunk is a whole number of at least 1"),
    ("train single --seed 99999999999999999999", "seed is a whole number of at most 64 bits"),
    ("train single --optimizer sdg", "--optimizer is one of sgd, adam, adamw, lamb; got 'sdg'"),
    ("train single --precision 8", "--precision is one of 32-true, bf16-mixed, 16-mixed; got '8'"),
    (
        "train single --accelerator cpu --precision 16-mixed",
        "--precision 16-mixed needs a GPU.*--precision bf16-mixed",
    ),
    ("train single --accelerator tpu", "--accelerator is one of 'auto', 'cpu', 'cuda', 'mps'; got 'tpu'"),
    ("train single --accelerator cuda", "torch sees no such device on this machine"),
    ("train single --devices 0", "devices is a whole number of at least 1"),
    ("train single --nodes 2", "--nodes 2, and this process was started alone: .* torchrun"),
    ("train single --threads 0", "threads is a whole number of at least 1"),
    ("train single --shards 0", "shards is a whole number of at least 1"),
    ("train single extra", "covey train single has no use for 'extra'"),
    ("train single --members 3", "covey train single has no flag --members"),
    ("train packed --alpha 0", "alpha is above 0"),
    ("train packed --members 0", "error: --members is the number of networks, at least 1; got 0"),
    ("train masksembles --options-scale 0.5", "error: --options-scale is at least 1; got 0.5"),
    (
        "train low-rank --own nothing --network mlp",
        "error: --own nothing matches none of the network's 6 param",
    ),
    ("train hypernetwork --sizes 3", "error: --sizes needs 3 values"),
    (
        "train late --method single",
        "a late start takes a method with options, such as norm-ensemble:members=10",
    ),
    ("train late --method packed", "packed:init=fresh initialises .* packed:init=slice cuts them out"),
    ("train deep-ensemble --network mlp+mlp", "deep-ensemble takes one network, and 2 .* superweights takes"),
    (
        "train swag --start 50",
        r"start at epoch 50 of 20. Start it earlier \(--start\), or train longer \(--epochs\)",
    ),
    ("train fge --epochs 1", r"a cycle of 2 epochs does not fit in what is left. .* \(--cycle\)"),
    ("train single --schedule.factor -1", "error: covey train single: --schedule.factor is above 0; got -1"),
    ("train batch-ensemble --init sgn", "--init is one of normal, sign, ones; got 'sgn'"),
    ("train batch-ensemble --where nowhere", "--where nowhere matches none"),
    ("train single --recipe nowhere.toml", "there is no recipe 'nowhere.toml'"),
    ("train single --scale tiny", "--scale is full or small; got 'tiny'"),
    ("train single --folder file.txt", "cannot write to .*file.txt: it is a file. Choose another folder"),
    ("train single --folder file.txt/run", "cannot write to .*file.txt/run: not a directory"),
    ("train --resume", "--resume without a method takes the folder of a run"),
    ("train --resume nowhere", "nowhere is no finished run .*: there is no such folder"),
    ("train --resume empty", "empty is no finished run .*: it has no settings.json"),
    ("train --resume run --epochs 1", "settings: epochs was 2 and is 1"),
    ("train --resume run --lr 0.3", "settings: lr was 0.05 and is 0.3"),
    ("train --resume run --overwrite", "--resume goes on with a run and --overwrite replaces it; choose one"),
    ("train --resume run --folder empty", "there are two folders, by --folder and --resume"),
    ("train single --network mlp --folder run", "run holds a run already.* resuming .--resume., replace it"),
]

IDLE = [
    (
        "train single --schedule.kind constant --schedule.milestones 1 2",
        "--schedule.milestones changes nothing",
    ),
    ("train single --schedule.cycle 2", "it is for --schedule.kind cyclic or triangular"),
    ("train single --schedule.factor 0.5", "it is for --schedule.kind multistep"),
    ("train single --schedule.kind multistep", "--schedule.kind 'multistep' needs --schedule.milestones"),
    ("train single --augment.magnitude 5", "it is for RandAugment, --augment.operations 1 or more"),
    ("train single --augment.switch 0.2", "it is for --augment.mixup and --augment.cutmix together"),
    ("train single --optimizer adamw --no-nesterov", "--nesterov changes nothing here"),
    ("train single --choose nll", "it is for --keep best or --patience"),
    ("train single --choose rmse --keep best", "--choose rmse is not defined for classification"),
    ("train single --data t.csv --target y --ignore note --channels-last", "it is for images"),
    ("train single --scale small", "--scale is the size of a recipe file; give --recipe too"),
    ("train single --samples 90 --train-samples 50", "the training part alone; choose one"),
    ("compare --methods single --choose nll", "it is for --keep best or --patience"),
    ("train single --quantiles 0.1 0.9", r"a number of few values, say so: --task regression\.$"),
    ("compare --methods single --scale small", "--scale is the size of a recipe file"),
    (
        "train batch-ensemble --init ones --spread 0.3",
        "--spread changes nothing here: it is for --init normal",
    ),
    ("train batch-ensemble --positive 0.3", "--positive changes nothing here: it is for --init sign"),
    (
        "compare --methods single --flatness 9 --data n.csv --target y",
        "n.csv is for regression; leave it out",
    ),
    (
        "compare --methods single --folder run",
        "run is the folder of a run; a comparison needs one of its own",
    ),
    ("networks --shape 3 32 32", "are for one network; name it"),
    ("evaluate run --skip-bad", "--skip-bad is for images of your own: --data FOLDER"),
]

DATA = [
    ("train single --data nowhere", "'nowhere' is neither a known data set nor a file or folder that exists"),
    ("train single --data ''", "the name of the data is empty"),
    ("train mc-dropout", "MC-dropout needs a network .* such as --p 0.2 --after layer1.0.conv1"),
    ("train single --network unet", "unet is for segmentation, and these data are for classification"),
    (
        "train single --data n.csv --target y --network lstm",
        "lstm is for language, and these data are for regr",
    ),
    (
        "train single --data shapes --network convnet",
        "segmentation needs more: unet is the zoo's network for it",
    ),
    (
        "train single --data photos --image-size 8 8 8",
        "1 or 3 channels; got 8. A size is a side, or a height",
    ),
    ("train single --data digit", "the nearest names are 'digits'"),
    ("train single --data yacht --split 3", "'yacht' is neither a known .* nearest names are 'uci/yacht'"),
    ("train single --data empty", "empty has no class folders; expected empty/CLASS/IMAGE"),
    ("train single --data photos/cat", "photos/cat holds images but no class folders"),
    ("train single --data photos --image-size 0", "--image-size is a side or a height and a width"),
    (
        "train single --data photos --network convnet",
        "square images, got height 10 and width 8; --image-size 10",
    ),
    ("train single --data photos --held-out mouse", "--held-out names 'mouse', which is no class"),
    ("train single --data photos --held-out cat dog", "--held-out leaves 0 of 2 classes"),
    ("train single --data photos --target y", "a target is a column of a table"),
    ("train single --data photos --ignore y", "ignore names columns of a table"),
    ("train single --data photos --task regression", "photos is for classification"),
    ("train single --data photos --text cat", "text and tokenizer are for texts in a table"),
    ("train single --data photos --ood nowhere", "'nowhere' is neither a known data set"),
    ("train single --data bad", "cannot read 2 of 4 images: .* go on without them .--skip-bad."),
    ("train single --samples 0", "at least one sample of each part must stay; got 0"),
    ("train single --train-samples -4", "at least one sample of each part must stay; got -4"),
    ("train single --validation 1.5", "below 1 in all; got 1.5 for validation and 0.2 for test"),
    ("train single --validation 0.6 --test 0.6", "got 0.6 for validation and 0.6 for test"),
    ("data t.csv", "say which column is to be predicted with --target"),
    ("data t.csv --target q", "has no column 'q'; there are 'a', 'b', 'note', 'y'"),
    ("data t.csv --target y", "'note' looks like free text.* leave the column out .--ignore note."),
    ("data t.csv --target y --ignore zz", "has no column 'zz' to ignore"),
    ("data t.csv --target y --ignore y", "'y' is to be ignored and to be predicted"),
    ("data t.csv --target y --ignore a b note", "has no column besides the target 'y'"),
    ("data t.csv --target y --ignore note --task regression", "the target 'y' is not numeric"),
    ("data n.csv --target y --skip-bad", "is no folder of images, .* leave --skip-bad out"),
    ("data n.csv --target y --held-out 3", "--held-out takes classes away, but the task is regression"),
    (
        "train single --data n.csv --target y --network convnet",
        r"takes images .*got 2; mlp takes any samples",
    ),
    ("train single --data n.csv --target y --smoothing 0.1", "label smoothing are for classes"),
    ("train single --data n.csv --target y --ignore-index 3", "--ignore-index names a class"),
    ("train single --data n.csv --target y --ood digits", "shape 1 x 8 x 8, which cannot be brought to 2;"),
    (
        "train single --data n.csv --target y --augment.flip",
        "--augment.flip: only for images; .* shape 2",
    ),
    ("train single --data n.csv --target y --text a", "texts need a tokenizer"),
    ("data short.csv --target y", "line 3 has 4 values where there are 3 columns; mend or remove it"),
    ("data head.csv --target y", "there are no samples"),
    ("data nothing.csv --target y", "cannot read the table nothing.csv: it is empty"),
    ("data latin.csv --target y", "byte 2 .0xf6. is not UTF-8; save the table as UTF-8"),
    ("data digits --target y", r"a target is a column of a table of your own \(\.csv, \.parquet"),
    ("data long.csv --target y", "its rows have more values than its first line has names"),
    (
        "data price.csv --target price",
        r"80 of its 80 values differ, the first is '\$1,000': too many for classes",
    ),
    (
        "data t.csv --target y --ignore note --task language",
        "a table is for classification or regression; got",
    ),
    ("data parts", "parts has test/ and val/, but no train/ to train on"),
    ("data sizes", "mixed sizes: .*; give --image-size to bring all to one size"),
    ("data kinds", "give --image-size 3 H W to make all colour, or --image-size 1 H W to make all grey"),
    (
        "train single --data photos --image-mean 128 --image-std 64",
        "are of intensities from 0 to 1; got 128 64. Divide those of intensities from 0 to 255 by 255",
    ),
    ("train single --data photos --ood other/photos photos", "two .* sets are called 'photos'; rename one"),
]

NETWORKS = [
    ("train single --network resnt-18", "there is no network 'resnt-18'; the nearest names are 'resnet-18'"),
    ("train single --network nets.py", "'nets.py' names a file and no function in it"),
    ("train single --network nets.py:mak", "has no function 'mak'; the nearest names are 'make'"),
    ("train single --network nets.py:fails", "nets.py:fails failed in line 8: ValueError: no luck"),
    ("train single --network nets.py:three", "should return a torch.nn.Module"),
    ("train single --network nowhere.py:f", "there is no file .*nowhere.py"),
    ("train single --network file.txt:f", "there is no network 'file.txt:f'"),
    ("train single --network mlp --network-option hidden", "an option is written name=value; got 'hidden'"),
    ("train single --network mlp --network-option hiden=3", "'mlp' has no option 'hiden'"),
    ("train single --network mlp --network-option hidden=abc", r"such as \[200, 200\], got 'abc'"),
    ("networks nonesuch", "there is no network 'nonesuch'"),
    ("networks nets.py:make", r"cannot take a sample of 3 x 224 x 224 .*; give --shape, such as"),
    ("networks nets.py:make --shape 2 3", "cannot take a sample of 2 x 3 .*; give another --shape"),
    ("networks resnet-18 --shape 3", r"takes images \(channels, height, width\), got 3; mlp takes"),
    ("networks mlp --shape -3", "--shape and --outputs are whole numbers of at least 1"),
    ("networks mlp --outputs 0", "--shape and --outputs are whole numbers of at least 1"),
    ("networks mlp --outputs x", "--outputs is a whole number; got 'x'"),
]

RUNS = [
    ("evaluate", r"covey evaluate needs FOLDER \(of the run\)"),
    ("evaluate nowhere", "nowhere is no finished run"),
    ("evaluate file.txt", "file.txt is no finished run"),
    ("evaluate empty", "empty is no finished run"),
    ("evaluate run run", "covey evaluate has no use for 'run'"),
    ("evaluate run --limt 3", "has no flag --limt; the nearest names are '--limit'"),
    ("evaluate run --limit many", "error: --limit is a whole number; got 'many'"),
    ("evaluate numbers --data t.csv", "predicts a number, and the target is not numeric: it holds 'x'"),
    ("evaluate run --limit 0", "at least one sample of each part must stay"),
    ("evaluate run --corruptions -4", "corruptions: expected 0 or more test images, got -4"),
    ("evaluate table --corruptions 9", "corruptions: expected test images in memory"),
    ("evaluate numbers --corruptions 9", "scored for images with classes; these data are for regression"),
    ("evaluate run --data nowhere", "nowhere is not there; expected a folder of images"),
    ("evaluate run --data n.csv", "is a table, and the network was trained on inputs of shape 1 x 8 x 8"),
    ("evaluate run --data photos", "has classes that the network was not trained on: 'cat', 'dog'"),
    ("evaluate run --data file.txt", "expected a folder of images, a table or an .npz file with answers"),
    ("evaluate run --data x.npy", "expected a folder of images, a table or an .npz file with answers"),
    ("evaluate table --data n.csv", "has classes that the network was not trained on"),
    ("evaluate run --ood nowhere", "'nowhere' is neither a known data set"),
    ("evaluate run --ood n.csv", "is a table, but the network was trained on inputs of shape 1 x 8 x 8"),
    ("evaluate run --network nets.py:make", "the network of run is mlp, no Python file"),
    ("train t.csv single", "takes a method first, and data behind a flag: covey train METHOD --data t.csv"),
    ("train single --method packed", r"has no flag --method\.$"),
    (
        "predict t.csv table",
        "t.csv is no finished run of `covey train`: it is a file; the folder of a run comes first",
    ),
    ("show run/ensemble", "it lies in one, run"),
    ("bench file.txt", "file.txt is no finished run of `covey train`: it is a file"),
    (
        "predict mixed n.csv",
        "do not belong together: its ensemble is one for classification, and its settings are of",
    ),
    ("show cut", "history.csv is empty: it was cut short"),
    ("networks lenet5x", "`covey networks` lists all, besides any 'wrn-D-K', and says how to name"),
    ("predict", r"covey predict needs FOLDER \(of the run"),
    ("predict run", r"covey predict needs INPUTS \(images"),
    ("predict run nowhere.npy", "nowhere.npy is not there"),
    ("predict run n.csv", "is a table, but the network was trained on inputs of shape 1 x 8 x 8"),
    ("predict run file.txt", "cannot read the image file.txt"),
    ("predict run objects.npy", "objects.npy is not an .npy file of plain arrays"),
    ("predict table n.csv --out x.txt", "--out is a .csv or .json file; got 'x.txt'"),
    ("predict run x.npy --out nowhere/x.csv", "cannot write nowhere/x.csv: no such file or directory"),
    ("predict run x.npy --batch 0", "--batch is a whole number of at least 1"),
    ("show", r"covey show needs FOLDER"),
    ("show nowhere", "nowhere is no finished run"),
    ("show run --json", "covey show has no flag --json"),
    ("methods pakced", "there is no method 'pakced'"),
    ("methods packed single", "covey methods has no use for 'single'"),
    ("serve", "covey serve needs the folder of a run"),
    ("serve run --port 99999999", "--port is a number from 0"),
    ("serve run --port abc", "--port is a whole number; got 'abc'"),
    ("serve run --defer -3", "--defer is a finite number of at least 0"),
    ("bench", r"covey bench needs FOLDER"),
    ("bench run --threads 0", "error: --threads is a whole number of at least 1; got 0"),
    ("serve run --ray --replicas 0", "error: --replicas is a whole number of at least 1; got 0"),
    ("bench run --repeats 0", "error: --repeats is a whole number of at least 1; got 0"),
    ("bench run --repeats x", "--repeats is a whole number; got 'x'"),
    ("bench run table", "covey bench has no use for 'table'"),
    ("distill", "takes the folder of a run that teaches"),
    ("distill run single --truth 2", "error: --truth is from 0 to 1; got 2"),
    (
        "distill run --data n.csv --target y",
        "run was trained on data with task classification, and n.csv has task regr",
    ),
    ("distill nowhere", "nowhere is no finished run"),
    ("distill run --folder run", "--folder run is the teacher's own; choose another for the student"),
    ("export", r"covey export needs FOLDER"),
    ("export run --to pdf", "--to is one of onnx, pt2; got 'pdf'"),
    ("export nowhere --to onnx", "nowhere is no finished run"),
    ("export nowhere --out net.txt", r"--out names a file that ends in \.onnx, as --to says; got net\.txt"),
    (
        "train single --data digits --epochs 2 --schedule.warmup 9",
        r"--schedule\.warmup is part of .* 2 epochs; got 9",
    ),
]

COMPARE = [
    ("compare --methods", "needs at least one method and one seed"),
    ("compare --seeds a", "--seeds cannot be 'a'"),
    ("compare --methods singel", "there is no method 'singel'"),
    ("compare --methods single single", "two of the runs are the same"),
    ("compare --methods single:lr", "an option is written name=value; got 'lr'"),
    (
        "compare --methods single:lr=abc",
        "error: --methods single:lr=abc: lr should be a finite number; got 'abc'",
    ),
    ("compare --methods single:members=3", "neither the method 'single' nor the recipe"),
    ("compare --methods packed:alpha=-1", "error: --methods packed:alpha=-1: alpha is above 0; got -1"),
    ("compare --methods packed:member=3", "has a setting 'member'; the nearest names are 'members'"),
    (
        "compare --methods single,packed",
        "--methods takes names with spaces between them; got 'single,packed'",
    ),
    ("compare single packed", "methods stand behind a flag: covey compare --methods single packed"),
    ("compare --vary epochs=0", "error: --vary 'epochs=0': epochs is a whole number of at least 1; got 0"),
    ("compare --methods single:seed=3", "the seeds of all methods are given by --seeds"),
    ("compare --vary seed=1,2", "the seeds of all methods are given by --seeds"),
    ("compare --vary lr", "--vary is written name=value,value; got 'lr'"),
    ("compare --jobs 0", "--jobs is a whole number of at least 1; got 0"),
    ("compare --results scores.txt", "--results is a .json file; got 'scores.txt'"),
    ("reproduce lost.toml --jobs 0", "error: --jobs is a whole number of at least 1; got 0"),
    ("compare --jobs 2 --ray", "--jobs and --ray are two ways of running"),
    ("compare --methods single --baseline nope", "--baseline 'nope' is not compared; there are 'single'"),
    ("compare --search -1", "--search is how many settings to try, at least 2"),
    ("compare --search 2 --space lr=1..0.1", "'lr=1..0.1' should have 0 < low < high"),
    (
        "compare --methods single --search 2 --space foo=1..2",
        "error: --space: neither .* has a setting 'foo'",
    ),
    ("compare --space lr=0.1..1", "give --search how many settings to try"),
    ("compare --search 2 --validation 0", "--search chooses by validation data"),
    ("compare --corruptions -1", "--corruptions is a number of test samples, 0 or more; got -1"),
    ("compare --flatness -1", "--flatness is a number of test samples, 0 or more; got -1"),
    ("compare --corruptions 9 --data t.csv --target y", "--corruptions is for images, and t.csv is a table"),
    ("compare --data nowhere", "^covey: error: 'nowhere' is neither a known data set nor a file or folder"),
    ("compare --data t.csv --target q", "^covey: error: t.csv has no column 'q'"),
    ("compare --network resnt-18", "^covey: error: there is no network 'resnt-18'"),
    ("compare --resume", "covey compare has no flag --resume"),
    ("compare --folder file.txt", "cannot write to .*file.txt: it is a file"),
    ("reproduce lost.toml", "^covey: error: 'nowhere' is neither a known data set nor a file or folder"),
    ("reproduce nope", "there is no recipe 'nope'"),
    ("reproduce --scale tiny nope", "--scale is one of full, small; got 'tiny'"),
    ("nonesuch", "there is no command 'nonesuch'"),
    ("help", "there is no command 'help'; `covey --help` lists all"),
    ("report run", "there is no command 'report'; `covey evaluate FOLDER` writes the report of a run"),
]

PYTHON = [
    r"Traceback",
    r"fault of covey",
    r"\[Errno",
    r"\.covey-",  # a draft's name
    r"\w=(True|False|None)\b",
    r"[A-Z]\w*\([a-z_]*=",  # a class with options
    r"error: (options|recipe|dataset|network)\.",
    r"<class '|object at 0x|NoneType",
    r"torch\.(float|int|Size)",
    r"invalid literal|could not convert",
    r"\(\d+,\)|\{'",  # a tuple of one number, a dict
    r"(held_out|image_size|skip_bad|ignore_index|member_chunk)",
]
"""What a message at the command line does not hold."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, good and bad, three small runs, and two whose files were changed."""
    folder = tmp_path_factory.mktemp("mistakes")
    _write_files(folder)
    _write_images(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # a command replaces it
        quick = "--no-progress --epochs 2 --network mlp --network-option hidden=[4]"
        table = "--data t.csv --target y --ignore note"
        assert main(shlex.split(f"train single {quick} --samples 60 --folder run")) == 0
        assert main(shlex.split(f"train single {quick} {table} --folder table")) == 0
        assert main(shlex.split(f"train single {quick} --data n.csv --target y --folder numbers")) == 0
    shutil.copytree(folder / "table", folder / "mixed")
    shutil.copy(folder / "numbers" / "settings.json", folder / "mixed")
    shutil.copytree(folder / "table", folder / "cut")
    (folder / "cut" / "history.csv").write_text("")
    return folder


def _write_files(folder: Path) -> None:
    (folder / "t.csv").write_text(CLASSES)
    (folder / "n.csv").write_text(NUMBERS)
    (folder / "short.csv").write_text("a,b,y\n1,2,3\n1,2,3,4\n")
    (folder / "head.csv").write_text("a,b,y\n")
    (folder / "long.csv").write_text("a,b,y\n" + "0,1.5,2,x\n1,1.5,3,z\n" * 40)
    prices = "".join(f'{i},"${i + 1000:,}"\n' for i in range(80))
    (folder / "price.csv").write_text(f"a,price\n{prices}")
    (folder / "nothing.csv").write_text("")
    (folder / "latin.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    (folder / "nets.py").write_text(NETS)
    (folder / "file.txt").write_text("words")
    (folder / "lost.toml").write_text('method = "single"\n[dataset]\ndata = "nowhere"\n')
    (folder / "empty").mkdir()
    np.save(folder / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
    np.save(folder / "objects.npy", np.array([{1: 2}], dtype=object), allow_pickle=True)


def _write_images(folder: Path) -> None:
    from PIL import Image

    grey = Image.new("RGB", (8, 10), (90, 90, 90))
    for name in ("photos/cat", "photos/dog", "bad/cat", "bad/dog"):
        (folder / name).mkdir(parents=True)
        count = 1 if name.startswith("bad") else 6
        for k in range(count):
            grey.save(folder / name / f"{k}.png")
    for name in (
        "parts/test/cat",
        "parts/val/cat",
        "sizes/cat",
        "sizes/dog",
        "kinds/cat",
        "kinds/dog",
        "other/photos",
    ):
        (folder / name).mkdir(parents=True)
        kind = "L" if name == "kinds/dog" else "RGB"
        side = 9 if name == "sizes/dog" else 8
        grey.convert(kind).resize((side, 8)).save(folder / name / "0.png")
    (folder / "bad" / "cat" / "broken.png").write_bytes(b"no image")
    (folder / "bad" / "dog" / "none.jpg").write_bytes(b"")


@pytest.mark.parametrize(("typed", "answer"), [*TRAIN, *IDLE, *DATA, *NETWORKS, *RUNS, *COMPARE])
def test_a_mistake_is_one_line_for_a_person(typed, answer, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    before = sorted(path for path in place.rglob("*") if path.name != ".lock")
    assert main(shlex.split(typed)) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    assert re.search(answer, err), err
    for pattern in PYTHON:
        assert not re.search(pattern, err), err
    after = sorted(path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
    assert set(after) <= set(before), "a refused command left files behind"


def test_there_are_many_and_no_two_alike():
    typed = [words for words, _ in [*TRAIN, *IDLE, *DATA, *NETWORKS, *RUNS, *COMPARE]]
    assert len(set(typed)) == len(typed) > 150
    commands = (
        "train compare evaluate predict serve bench distill export methods networks data reproduce show"
    )
    assert {words.split()[0] for words in typed} == {*commands.split(), "nonesuch", "help", "report"}


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("compare --methods single", "covey: stopped; the same command goes on with what is not done"),
        (
            "distill run",
            "covey: stopped; the same command with --resume goes on from the last checkpoint, if",
        ),
        ("show run", "covey: stopped\n"),
    ],
)
def test_after_ctrl_c_a_line_says_how_to_go_on(typed, answer, place, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(place)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("covey.cli.main._dispatch", stop)
    assert main(shlex.split(typed)) == 130
    assert capsys.readouterr().err.startswith(answer)


def test_skipped_images_are_named_in_training_too(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    for name in ("cat", "dog"):
        (place / "bad" / name / "1.png").write_bytes((place / "photos" / name / "1.png").read_bytes())
        (place / "bad" / name / "2.png").write_bytes((place / "photos" / name / "2.png").read_bytes())
    quick = "--epochs 1 --network mlp --network-option hidden=[4] --no-progress --no-evaluate"
    assert main(shlex.split(f"train single --data bad --skip-bad {quick} --folder {tmp_path / 'run'}")) == 0
    assert "skipped, cannot read 2 of 8 images: bad/cat/broken.png" in capsys.readouterr().out
