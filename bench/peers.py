"""What bench/peers_cpu.py, peers_cuda.py and peers_types.py have in common: rows as CSV, ggml's
functions."""
import csv
import ctypes as C
import sys


def write_csv(path, rows):
    """Dictionaries of the same keys, if a file is asked for."""
    if path:
        with open(path, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


class InitParams(C.Structure):
    _fields_ = [("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool)]


KINDS = {"ptr": C.c_void_p, "size": C.c_size_t, "int": C.c_int, "i64": C.c_int64, "f32": C.c_float,
         "bool": C.c_bool, "void": None, "InitParams": InitParams}


def bind_ggml(to, libs, prototypes):
    """Functions of the libraries as attributes of `to`, without their prefix, and ggml's version, None if
    it has none.
    prototypes: "result name arguments", in KINDS, separated by semicolons or line ends."""
    for line in prototypes.replace("\n", ";").split(";"):
        if line.split():
            result, name, *arguments = line.split()
            lib = next((lib for lib in libs if hasattr(lib, name)), None)
            if lib is None:
                sys.exit(f"this ggml has no {name}: too old")
            function = getattr(lib, name)
            function.restype, function.argtypes = KINDS[result], [KINDS[a] for a in arguments]
            setattr(to, name.removeprefix("ggml_"), function)
    to.version = None
    if hasattr(libs[0], "ggml_version"):
        libs[0].ggml_version.restype = C.c_char_p
        to.version = libs[0].ggml_version().decode()
