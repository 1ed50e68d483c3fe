/* A stand-in for CUDA below a CUDA build of PyTorch, on a machine without a GPU: it counts.
 *
 * Loaded before libcudart, libcuda and cuBLAS (LD_PRELOAD), it answers for them. Memory of the device
 * is memory of the host, copies copy, streams and events are numbers. Kernels are counted and do
 * nothing: so it shows no values and no times. build.py adds a function for each that it lacks, which
 * returns 0, and calls standin_library where a library would launch.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void *Handle;
enum { OUT_OF_MEMORY = 2, NOT_SUPPORTED = 500, CAPTURING = 900 };

/* ---- what is counted: counts.py has the same names in the same order ---- */
enum { LAUNCH, LIBRARY, TRITON, TO_DEVICE, PAGEABLE, TO_HOST, ON_DEVICE, SET, WAIT, REPLAY, N_COUNTS };
static long long counts[N_COUNTS];
static void (*on_event)(const char *);
static __thread int is_told; /* what a listener itself does is not */

void standin_counts(long long *out) { memcpy(out, counts, sizeof counts); }
void standin_restart(void) { memset(counts, 0, sizeof counts); }
void standin_listen(void (*listener)(const char *)) { on_event = listener; }
static void add(int which) { __atomic_add_fetch(&counts[which], 1, __ATOMIC_RELAXED); }
static void tell(const char *what) {
  if (!on_event || is_told) return;
  is_told = 1;
  on_event(what);
  is_told = 0;
}
void standin_library(void) { add(LIBRARY); }

/* ---- memory ---- */
enum { DEVICE = 1, PINNED = 2, MOST = 65536 };
static const size_t TOTAL = 79ull << 30, PAGE = 2ull << 20;
static struct { char *at; size_t bytes; int kind; } blocks[MOST];
static int n_blocks;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int take(Handle *out, size_t bytes, int kind) {
  bytes = bytes ? (bytes + PAGE - 1) & ~(PAGE - 1) : PAGE;
  pthread_mutex_lock(&lock);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, is_full = n_blocks == MOST;
  is_full |= kind == DEVICE && used + bytes > TOTAL;
  void *at = is_full ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (at != MAP_FAILED) {
    blocks[n_blocks].at = *out = at;
    blocks[n_blocks].bytes = bytes;
    blocks[n_blocks++].kind = kind;
    if (kind == DEVICE) used += bytes;
  }
  pthread_mutex_unlock(&lock);
  return at == MAP_FAILED ? OUT_OF_MEMORY : 0;
}
static int give(void *at) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n_blocks; i++)
    if (blocks[i].at == at) {
      munmap(at, blocks[i].bytes);
      if (blocks[i].kind == DEVICE) used -= blocks[i].bytes;
      blocks[i] = blocks[--n_blocks];
      break;
    }
  pthread_mutex_unlock(&lock);
  return 0;
}
static int kind_of(const void *p) { /* 0: neither */
  int kind = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n_blocks && !kind; i++)
    if ((char *)p >= blocks[i].at && (char *)p < blocks[i].at + blocks[i].bytes) kind = blocks[i].kind;
  pthread_mutex_unlock(&lock);
  return kind;
}
int cudaMalloc(void **p, size_t n) { return take(p, n, DEVICE); }
int cudaFree(void *p) { return p ? give(p) : 0; }
int cudaHostAlloc(void **p, size_t n, unsigned flags) { return take(p, n, PINNED); }
int cudaFreeHost(void *p) { return give(p); }
int cudaMemGetInfo(size_t *there, size_t *total) { return *total = TOTAL, *there = TOTAL - used, 0; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  int kind = kind_of(p);
  memset(a, 0, sizeof *a);
  a->type = kind == DEVICE ? cudaMemoryTypeDevice : kind ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->device = kind ? 0 : -1;
  a->devicePointer = kind ? (void *)p : NULL;
  a->hostPointer = kind == PINNED ? (void *)p : NULL;
  return 0;
}

/* ---- waits and copies ---- */
static Handle capturing; /* the stream that is captured: one at a time */
static int wait_for(const char *how, int spoils_a_capture) {
  add(WAIT);
  tell(spoils_a_capture ? "wait in a capture" : how);
  return spoils_a_capture ? CAPTURING : 0;
}
static int copy(void *to, const void *from, size_t bytes) {
  int into = kind_of(to), out_of = kind_of(from);
  if (bytes) memmove(to, from, bytes);
  if (into == DEVICE && out_of == DEVICE) return add(ON_DEVICE), 0;
  add(into == DEVICE ? TO_DEVICE : TO_HOST);
  if (into != PINNED && out_of != PINNED) {
    add(PAGEABLE);
    tell(into == DEVICE ? "pageable copy to the device" : "pageable copy to the host");
  }
  return 0;
}
int cudaMemcpy(void *to, const void *from, size_t n, int kind) {
  copy(to, from, n);
  return wait_for("cudaMemcpy", capturing != NULL);
}
int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, Handle stream) { return copy(to, from, n); }
int cudaMemcpy2DAsync(void *to, size_t to_row, const void *from, size_t from_row, size_t width, size_t height,
                      int kind, Handle stream) {
  for (size_t i = 0; i < height; i++) memmove((char *)to + i * to_row, (char *)from + i * from_row, width);
  return add(ON_DEVICE), 0;
}
int cudaMemsetAsync(void *at, int value, size_t n, Handle stream) { return memset(at, value, n), add(SET), 0; }
int cudaMemset(void *at, int value, size_t n) { return cudaMemsetAsync(at, value, n, NULL); }
int cudaStreamSynchronize(Handle s) { return wait_for("cudaStreamSynchronize", capturing && s == capturing); }
int cudaDeviceSynchronize(void) { return wait_for("cudaDeviceSynchronize", capturing != NULL); }
int cudaEventSynchronize(Handle e) { return wait_for("cudaEventSynchronize", 0); }

/* ---- streams, events, graphs ---- */
static long made = 0x1000;
static int fresh(Handle *out) { return *out = (Handle)__atomic_add_fetch(&made, 16, __ATOMIC_RELAXED), 0; }
int cudaStreamCreateWithPriority(Handle *s, unsigned flags, int priority) { return fresh(s); }
int cudaStreamCreateWithFlags(Handle *s, unsigned flags) { return fresh(s); }
int cudaStreamGetPriority(Handle s, int *priority) { return *priority = 0; }
int cudaEventCreateWithFlags(Handle *e, unsigned flags) { return fresh(e); }
int cudaEventElapsedTime(float *ms, Handle a, Handle b) { return *ms = 1, 0; }
int cudaStreamIsCapturing(Handle s, int *is) { return *is = capturing && s == capturing, 0; }
int cuStreamIsCapturing(Handle s, int *is) { return cudaStreamIsCapturing(s, is); }
int cudaStreamBeginCapture(Handle s, int mode) { return capturing = s, 0; }
int cudaStreamEndCapture(Handle s, Handle *graph) { return capturing = NULL, fresh(graph); }
int cudaStreamGetCaptureInfo(Handle s, int *is, unsigned long long *id, Handle *graph, const Handle **needs,
                             const Handle **edges, size_t *n) {
  cudaStreamIsCapturing(s, is);
  if (id) *id = *is;
  if (graph) *graph = (Handle)16;
  if (needs) *needs = NULL;
  if (edges) *edges = NULL;
  if (n) *n = 0;
  return 0;
}
int cudaGraphInstantiateWithFlags(Handle *x, Handle graph, unsigned long long flags) { return fresh(x); }
int cudaGraphGetNodes(Handle graph, Handle *nodes, size_t *n) { return *n = 1, 0; }
int cudaGraphLaunch(Handle x, Handle stream) { return add(REPLAY), 0; }
int cudaLaunchHostFunc(Handle s, void (*call)(void *), void *with) { return call(with), 0; }

/* ---- kernels: those of torch by the runtime, Triton's and NVRTC's by the driver ---- */
Handle *__cudaRegisterFatBinary(void *binary) { static Handle held[4]; return held; }
char __cudaInitModule(Handle *h) { return 1; }
int __cudaGetKernel(Handle *out, const void *host) { return *out = (Handle)host, 0; }
static __thread struct { dim3 grid, block; size_t shared; Handle stream; } call;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, Handle stream) {
  call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = call.grid, *block = call.block, *shared = call.shared, *(Handle *)stream = call.stream;
  return 0;
}
int cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **with, size_t shared, Handle s) { return add(LAUNCH), 0; }
int __cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **with, size_t shared, Handle s) { return add(LAUNCH), 0; }
int cudaLaunchKernelExC(const void *how, const void *f, void **with) { return add(LAUNCH), 0; }
int cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **with, size_t shared, Handle s) { return add(LAUNCH), 0; }
int cuLaunchKernelEx(const void *how, Handle f, void **with, void **more) { return add(TRITON), 0; }
int cuLaunchKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   Handle s, void **with, void **more) { return add(TRITON), 0; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->binaryVersion = a->ptxVersion = 90;
  a->maxDynamicSharedSizeBytes = 232448;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) { return *n = 2, 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) {
  return *n = 2, 0;
}
int cudaGetSymbolAddress(void **p, const void *symbol) { static char there[1 << 20]; return *p = there, 0; }

/* ---- one H100 ---- */
static const char *NAME = "NVIDIA H100 80GB HBM3";
static const int ATTRIBUTES[][2] = { /* of cudaDeviceAttr, and its value */
  {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
  {12, 65536}, {13, 1980000}, {14, 512}, {16, 132}, {36, 2619000}, {37, 5120}, {38, 50 << 20}, {39, 2048}, {40, 2},
  {41, 1}, {75, 9}, {81, 233472}, {82, 65536}, {95, 1}, {97, 232448}, {106, 32}, {111, 1024}, {115, 1}, {0, 0}};
static int attribute(int *value, int which) {
  *value = 0;
  for (int i = 0; ATTRIBUTES[i][0]; i++) if (ATTRIBUTES[i][0] == which) *value = ATTRIBUTES[i][1];
  return 0;
}
int cudaGetDeviceCount(int *n) { return *n = 1, 0; }
int cudaGetDevice(int *device) { return *device = 0; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, 0; }
int cudaDeviceGetAttribute(int *value, int which, int device) { return attribute(value, which); }
int cudaDeviceGetStreamPriorityRange(int *low, int *high) { return *low = 0, *high = -5, 0; }
int cudaDeviceGetPCIBusId(char *text, int n, int device) { return snprintf(text, n, "0000:01:00.0"), 0; }
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, NAME);
  p->totalGlobalMem = TOTAL, p->sharedMemPerBlock = 49152, p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32, p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535, p->major = 9;
  p->multiProcessorCount = 132, p->maxThreadsPerMultiProcessor = 2048, p->sharedMemPerMultiprocessor = 233472;
  p->sharedMemPerBlockOptin = 232448, p->l2CacheSize = 50 << 20, p->memoryBusWidth = 5120, p->unifiedAddressing = 1;
  p->maxBlocksPerMultiProcessor = 32, p->reservedSharedMemPerBlock = 1024, p->concurrentKernels = p->cooperativeLaunch = 1;
  return 0;
}
const char *cudaGetErrorString(int error) {
  return error == OUT_OF_MEMORY ? "out of memory" : error == CAPTURING ? "not permitted in a capture" : "stand-in";
}
const char *cudaGetErrorName(int error) { return "cudaErrorStandIn"; }

/* ---- the driver ---- */
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *device, int i) { return *device = i, 0; }
int cuDeviceGetName(char *text, int n, int device) { return snprintf(text, n, "%s", NAME), 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { return attribute(value, which); }
int cuDeviceTotalMem_v2(size_t *n, int device) { return *n = TOTAL, 0; }
int cuCtxGetCurrent(Handle *context) { return *context = (Handle)16, 0; }
int cuCtxGetDevice(int *device) { return *device = 0; }
int cuDevicePrimaryCtxRetain(Handle *context, int device) { return *context = (Handle)16, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  if (flags) *flags = 0;
  return *is_active = 1, 0;
}
int cuModuleLoadData(Handle *module, const void *image) { return fresh(module); }
int cuModuleLoadDataEx(Handle *module, const void *image, unsigned n, void *options, void *values) { return fresh(module); }
int cuModuleGetFunction(Handle *f, Handle module, const char *name) { return fresh(f); }
int cuFuncGetAttribute(int *value, int which, Handle f) { return *value = which == 0 ? 1024 : which == 4 ? 32 : 0, 0; }
int cuOccupancyMaxActiveClusters(int *n, Handle f, void *how) { return *n = 1, 0; }
int cuGetErrorString(int error, const char **text) { return *text = "stand-in", 0; }
int cuPointerGetAttribute(void *value, int which, unsigned long long p) {
  if (which == 3) *(void **)value = (void *)p;
  else memset(value, 0, 4);
  return 0;
}
int cuGetExportTable(const void **table, const void *id) { return *table = NULL, NOT_SUPPORTED; } /* NVRTC asks */
static int nothing(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, int *status) {
  char second[128];
  snprintf(second, sizeof second, "%s_v2", name);
  if (!(*f = dlsym(RTLD_DEFAULT, name)) && !(*f = dlsym(RTLD_DEFAULT, second))) *f = (void *)nothing;
  if (status) *status = 0;
  return 0;
}

/* ---- libraries ---- */
int cublasCreate_v2(Handle *h) { return fresh(h); }
int cublasLtCreate(Handle *h) { return fresh(h); }
int cusolverDnCreate(Handle *h) { return fresh(h); }
int cusparseCreate(Handle *h) { return fresh(h); }
int cublasLtMatmulDescCreate(Handle *h) { return fresh(h); }
int cublasLtMatrixLayoutCreate(Handle *h) { return fresh(h); }
int cublasLtMatmulPreferenceCreate(Handle *h) { return fresh(h); }
int cublasGetMathMode(Handle h, int *mode) { return *mode = 0; }
int cublasGetPointerMode_v2(Handle h, int *mode) { return *mode = 0; }
size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasGetStatusString(int status) { return "stand-in"; }
int cublasLtMatmulAlgoGetHeuristic(Handle h, void *how, void *a, void *b, void *c, void *d, void *preference, int n,
                                   void *results, int *found) {
  memset(results, 0, 76); /* of one cublasLtMatmulHeuristicResult_t, up to its status: success */
  return *found = 1, 0;
}
