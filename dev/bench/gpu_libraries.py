"""Finds nvcc, cuBLASLt, cuDNN and NCCL and reports where they are. Toolkits come with or without cuDNN; PyTorch's wheels have
both libraries but no libcublasLt.so to link with. Files that the compiler or the loader would miss are linked into a folder
under build/, and the variables that the build and the runs need are in `environment`. Installs nothing.
"""
import os
import shutil
import sys
from pathlib import Path

import gpu_tools as tools

FOLDER = tools.ROOT / "build" / "gpu_libraries"
SYSTEM_HEADERS = ["/usr/local/include", "/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"]


class Library:
    """Its name, its header, what programs load (the newest of these), whether the linker needs it, too, the variable
    that tells the trainer where it is, and the oldest version that the trainer uses (of cuDNN: cudnn_library.c)."""

    def __init__(self, name, header, loaded, linked=None, variable=None, oldest=0):
        self.name, self.header, self.loaded, self.linked, self.variable = name, header, loaded, linked, variable
        self.oldest = oldest

    def is_new_enough(self, path):
        """What cannot be loaded counts as new enough: the trainer says what is wrong with it."""
        code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())"
        return not self.oldest or int(tools.output_of(sys.executable, "-c", code, path) or self.oldest) >= self.oldest


LIBRARIES = [
    Library("cuBLASLt", "cublasLt.h", ["libcublasLt.so.13", "libcublasLt.so.12"], "libcublasLt.so"),
    Library("cuDNN", "cudnn.h", ["libcudnn.so.9"], variable="CUDNN_LIBRARY", oldest=91501),
    Library("NCCL", "nccl.h", ["libnccl.so.2"], variable="NCCL_LIBRARY"),
    Library("NVRTC", None, ["libnvrtc.so.13", "libnvrtc.so.12"]),  # cuDNN compiles its attention with it
]


def folders(variable):
    """Without our own, which is made anew."""
    found = [Path(folder) for folder in os.environ.get(variable, "").split(":") if folder]
    return [folder for folder in found if FOLDER not in folder.parents]


def python_folders():
    """site-packages of every Python on the PATH: there lie the wheels."""
    found = []
    for python in dict.fromkeys(filter(None, (shutil.which(name) for name in ("python3", "python", "/usr/bin/python3")))):
        found += tools.output_of(python, "-c", "import sys; print('\\n'.join(filter(None, sys.path)))").splitlines()
    return [Path(folder) for folder in dict.fromkeys(found)]


class Libraries:
    """lines: what was found, where. missing: names. environment: what to add to os.environ."""

    def __init__(self, wheels=None, loader=None, system=None):
        """Tests give their own site-packages, answer of ldconfig -p, and folders of headers."""
        self.lines, self.missing, self.environment = [], [], {}
        nvcc = shutil.which("nvcc") or next((str(path) for path in (Path("/usr/local/cuda/bin/nvcc"),
                                             tools.ROOT / ".cuda/bin/nvcc") if path.exists()), None)
        self.toolkit = Path(os.environ["CUDA"]) if os.environ.get("CUDA") else Path(nvcc).parent.parent if nvcc else None
        if self.toolkit and (self.toolkit / "bin" / "nvcc").exists():
            self.lines.append(f"nvcc: {self.toolkit}/bin/nvcc")
        else:
            self.missing.append("nvcc")
            self.lines.append("nvcc: not found (PATH, /usr/local/cuda, .cuda; CUDA=DIR says where a toolkit is)")
        self.wheels = [path / "nvidia" for path in (python_folders() if wheels is None else wheels)]
        self.loader = tools.output_of("/sbin/ldconfig", "-p") if loader is None else loader
        self.system = [Path(path) for path in (SYSTEM_HEADERS if system is None else system)]
        self.links = {"include": {}, "lib": {}}
        self.headers = {}  # name -> where it is
        for library in LIBRARIES:
            self.find(library)
        self.make_links()

    def toolkit_folders(self, kinds):
        return [path for kind in kinds for path in self.toolkit.glob(kind)] if self.toolkit else []

    def find(self, library):
        said = [text for text in (self.find_header(library), self.find_loaded(library)) if text]
        self.lines.append(f"{library.name}: " + "; ".join(said))

    def find_header(self, library):
        if not library.header:
            return ""
        known = folders("CPATH") + self.toolkit_folders(["include", "targets/*/include"]) + self.system
        for folder in known:
            if (folder / library.header).exists():
                self.headers[library.header] = folder / library.header
                return f"{library.header} in {folder}"
        for wheel in self.wheels:
            for header in sorted(wheel.glob(f"*/include/{library.header}")):
                self.headers[library.header] = header
                # Not the whole folder: it may hold another CUDA's headers as well.
                prefix = library.name.removesuffix("Lt").lower()
                self.links["include"].update({path.name: path for path in header.parent.glob(f"{prefix}*.h")})
                return f"{library.header} in {header.parent} (a wheel)"
        self.missing.append(f"{library.header}")
        return f"{library.header} not found"

    def find_loaded(self, library):
        chosen = os.environ.get(library.variable or "")
        if chosen and Path(chosen).exists():
            return f"{chosen} ({library.variable})"
        in_toolkit = self.toolkit_folders(["lib64", "lib", "targets/*/lib"])
        to_link = library.linked and not any((folder / library.linked).exists()
                                             for folder in folders("LIBRARY_PATH") + in_toolkit)
        for name in library.loaded:
            if any((folder / name).exists() for folder in folders("LD_LIBRARY_PATH")) or f"\t{name} " in self.loader:
                where = next((line.split("=> ")[1] for line in self.loader.splitlines() if f"\t{name} " in line), None)
                where = where or next(str(f / name) for f in folders("LD_LIBRARY_PATH") if (f / name).exists())
                newer = None if library.is_new_enough(where) else self.newer(library, in_toolkit)
                if newer:
                    self.take(library, newer, to_link)
                    return f"{newer} (the loader's {where} is too old)"
                if to_link:
                    self.links["lib"][library.linked] = Path(where)
                return where
        for path in self.elsewhere(library, in_toolkit):
            self.take(library, path, to_link)
            return f"{path} (not where the loader looks)"
        self.missing.append(library.loaded[0])
        return f"{library.loaded[0]} not found"

    def elsewhere(self, library, in_toolkit):
        """Where the loader does not look."""
        found = [folder / name for name in library.loaded for folder in in_toolkit]
        found += [path for name in library.loaded for wheel in self.wheels for path in wheel.glob(f"*/lib/{name}")]
        return [path for path in found if path.exists()]

    def newer(self, library, in_toolkit):
        return next((path for path in self.elsewhere(library, in_toolkit) if library.is_new_enough(path)), None)

    def take(self, library, path, to_link):
        if library.variable:
            self.environment[library.variable] = str(path)
        else:
            self.links["lib"][path.name] = path
        if to_link:
            self.links["lib"][library.linked] = path

    def make_links(self):
        for kind, variables in (("include", ["CPATH"]), ("lib", ["LIBRARY_PATH", "LD_LIBRARY_PATH"])):
            folder = FOLDER / kind
            shutil.rmtree(folder, ignore_errors=True)
            if not self.links[kind]:
                continue
            folder.mkdir(parents=True)
            for name, target in self.links[kind].items():
                (folder / name).symlink_to(target.resolve())
            for variable in variables:
                self.environment[variable] = ":".join(map(str, [folder, *folders(variable)]))

    def report(self, without_cudnn=False):
        """A section: fails where something is missing that the results would lack without a word."""
        text = "; ".join(self.lines)
        missing = [name for name in self.missing if "nccl" not in name and not (without_cudnn and "cudnn" in name)]
        if any("cudnn" in name for name in missing):
            text = "no cuDNN: attention is our own kernels only (--no-cudnn if that is meant); " + text
        if missing:
            raise tools.Failed(f"missing: {', '.join(missing)}; {text}")
        return text


def prepare():
    """Finds them and sets the variables for everything that is started from here."""
    libraries = Libraries()
    os.environ.update(libraries.environment)
    return libraries
