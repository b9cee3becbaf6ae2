// CUDA's runtime without a GPU, for the drivers of models: a stream is a queue, and `drain` works all queues off in any
// order that their events allow, another one for each seed. Kernels are in kernels.inc.
#include "cuda_runtime_api.h"

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <vector>

struct Queue {
    std::deque<std::function<bool()>> tasks;  // false: not yet
};
struct Event {
    int recorded = 0, done = 0;
};

static std::vector<Queue*> queues{new Queue};
static int current = 0, alive = 0;

static Queue& at(cudaStream_t stream) { return stream == nullptr ? *queues[0] : *stream; }

static void launch(cudaStream_t stream, std::function<void()> task) {
    at(stream).tasks.push_back([task] { return task(), true; });
}

extern "C" void use_device(int number) { current = number; }
extern "C" int left() { return alive; }

extern "C" void drain(unsigned seed) {
    for (;;) {
        std::vector<Queue*> left;
        for (Queue* queue : queues) {
            if (!queue->tasks.empty()) left.push_back(queue);
        }
        if (left.empty()) return;
        seed = seed * 1664525u + 1013904223u;
        bool moved = false;
        for (size_t i = 0; i < left.size() && !moved; ++i) {
            Queue& queue = *left[((seed >> 16) + i) % left.size()];
            if ((moved = queue.tasks.front()())) queue.tasks.pop_front();
        }
        if (!moved) std::abort();  // each waits for another
    }
}

const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* found) { return *found = current, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
    return *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int) {
    queues.push_back(*stream = new Queue);
    return ++alive, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return --alive, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, int) { return ++alive, *event = new Event, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return --alive, delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const int mine = ++event->recorded;
    launch(stream, [event, mine] { event->done = mine; });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int) {
    const int wanted = event->recorded;
    at(stream).tasks.push_back([event, wanted] { return event->done >= wanted; });
    return cudaSuccess;
}

#include "kernels.inc"
