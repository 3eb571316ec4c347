/* What libtorch_cuda calls of the CUDA runtime when it is loaded and asked for devices: there are none. */
static void *handle;

void **__cudaRegisterFatBinary(void *binary) { (void)binary; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction() {}
void __cudaRegisterVar() {}
char __cudaInitModule(void **handle) { (void)handle; return 1; }

/* 100 is cudaErrorNoDevice. */
int cudaGetDeviceCount(int *count) { *count = 0; return 100; }
int cudaGetDevice(int *device) { *device = 0; return 100; }
int cudaDriverGetVersion(int *version) { *version = 0; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 12080; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorString(int error) { (void)error; return "no CUDA device: the library is a stand-in"; }
const char *cudaGetErrorName(int error) { (void)error; return "cudaErrorNoDevice"; }
