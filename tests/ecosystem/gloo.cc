// Reduces vectors with gloo over its ibverbs transport, and checks the results.
// Usage: gloo RANK SIZE DIRECTORY: the processes meet in the directory, and use the first device.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

typedef std::shared_ptr<std::vector<float>> Vector;

static bool is_sum(const std::vector<float> &data, int size) {
    for (float value : data) {
        if (value != size * (size + 1) / 2)
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int rank = atoi(argv[1]), size = atoi(argv[2]);
    gloo::transport::ibverbs::attr attributes;
    attributes.port = 1;
    attributes.index = 0;
    auto device = gloo::transport::ibverbs::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(argv[3]);
    context->connectFullMesh(store, device);

    // gloo aborts if a buffer is destroyed before its last send has completed.
    std::vector<std::shared_ptr<void>> kept;
    bool correct = true;
    for (size_t count : {1, 1000, 1000000}) {
        Vector first = std::make_shared<std::vector<float>>(count, rank + 1);
        Vector second = std::make_shared<std::vector<float>>(count, rank + 1);
        auto ring = std::make_shared<gloo::AllreduceRingChunked<float>>(
            context, std::vector<float *>{first->data()}, count);
        ring->run();
        auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
            context, std::vector<float *>{second->data()}, count);
        halving->run();
        correct = correct && is_sum(*first, size) && is_sum(*second, size);
        kept.insert(kept.end(), {first, second, ring, halving});
    }
    sleep(1);
    while (!kept.empty())
        kept.pop_back();
    printf("gloo: %s, rank %d of %d\n", correct ? "correct" : "WRONG", rank, size);
    return !correct;
}
