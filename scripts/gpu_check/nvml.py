"""What NVML says of one GPU: its memory, and the processes that compute on it. By ctypes, with the layouts of nvml.h."""

import ctypes


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


# Of nvmlReturn_t.
SUCCESS, INSUFFICIENT_SIZE = 0, 7

PROCESSES_MAX = 256


class Nvml:
    """Raises OSError where there is no library, or where it refuses."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.check("nvmlInit_v2", self.library.nvmlInit_v2())

    def check(self, call, code):
        if code != SUCCESS:
            raise OSError(f"{call} answers {code}")

    def gpu(self, uuid):
        handle = ctypes.c_void_p()
        self.check(
            "nvmlDeviceGetHandleByUUID", self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        )
        return Gpu(self, handle)

    def driver(self):
        text = ctypes.create_string_buffer(96)
        self.check("nvmlSystemGetDriverVersion", self.library.nvmlSystemGetDriverVersion(text, len(text)))
        return text.value.decode()


class Gpu:
    def __init__(self, nvml, handle):
        self.nvml, self.handle = nvml, handle

    def free_bytes(self):
        memory = Memory()
        call = self.nvml.library.nvmlDeviceGetMemoryInfo
        self.nvml.check("nvmlDeviceGetMemoryInfo", call(self.handle, ctypes.byref(memory)))
        return memory.free

    def processes(self):
        """The ids of those that compute."""
        processes, count = (Process * PROCESSES_MAX)(), ctypes.c_uint(PROCESSES_MAX)
        call = self.nvml.library.nvmlDeviceGetComputeRunningProcesses_v3
        code = call(self.handle, ctypes.byref(count), processes)
        self.nvml.check("nvmlDeviceGetComputeRunningProcesses_v3", code)
        return [process.pid for process in processes[: count.value]]

    def capability(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        call = self.nvml.library.nvmlDeviceGetCudaComputeCapability
        code = call(self.handle, ctypes.byref(major), ctypes.byref(minor))
        self.nvml.check("nvmlDeviceGetCudaComputeCapability", code)
        return f"{major.value}.{minor.value}"
