// Runs __global__ functions on a CPU: blocks one after another, the threads of a block as fibers
// that change over at __syncthreads and at warp shuffles. Only what the kernels use is there.
//
// Threads run in the order of their number or in the reverse; a kernel that lacks a barrier gives
// different results in the two. A barrier that some threads of a block or warp never reach is an
// error and not a hang.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)

using cudaStream_t = void*;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace emulator {

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Index {
  unsigned x;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  State state;
};

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 64 << 10;
constexpr size_t kShared = 1024;  // doubles

inline Index thread;
inline Index block;
inline bool reverse = false;
inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::function<void()> body;
inline std::vector<double> exchanged;  // a slot for each thread
inline std::vector<double> shared;     // NaN when a block begins

inline void stop(State state) {
  Fiber& own = fibers[thread.x];
  own.state = state;
  swapcontext(&own.context, &scheduler);
}

inline void run_fiber() {
  body();
  stop(State::kDone);
}

inline void run_ready(unsigned index) {
  if (fibers[index].state != State::kReady) return;
  thread.x = index;
  swapcontext(&scheduler, &fibers[index].context);
}

// Lets the threads `begin` to `end` go on if each of them waits as `state` says.
inline bool release(unsigned begin, unsigned end, State state) {
  for (unsigned i = begin; i < end; ++i) {
    if (fibers[i].state != state) return false;
  }
  for (unsigned i = begin; i < end; ++i) fibers[i].state = State::kReady;
  return true;
}

inline bool all_done() {
  for (const Fiber& fiber : fibers) {
    if (fiber.state != State::kDone) return false;
  }
  return true;
}

inline void run_block(unsigned threads) {
  fibers.resize(threads);
  exchanged.assign(threads, 0.0);
  shared.assign(kShared, NAN);
  for (Fiber& fiber : fibers) {
    fiber.stack.resize(kStack);
    fiber.state = State::kReady;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  while (true) {
    for (unsigned i = 0; i < threads; ++i) run_ready(reverse ? threads - 1 - i : i);
    if (all_done()) return;
    bool released = release(0, threads, State::kAtBlockBarrier);
    for (unsigned warp = 0; warp < threads; warp += kWarp) {
      released = release(warp, warp + kWarp, State::kAtWarpBarrier) || released;
    }
    if (!released) {
      std::fprintf(stderr, "block %u: a barrier is not reached by all its threads\n", block.x);
      std::abort();
    }
  }
}

inline void launch(std::function<void()> kernel, int64_t blocks, unsigned threads) {
  body = std::move(kernel);
  for (int64_t i = 0; i < blocks; ++i) {
    block.x = static_cast<unsigned>(i);
    run_block(threads);
  }
}

}  // namespace emulator

#define threadIdx emulator::thread
#define blockIdx emulator::block
// One array a kernel.
#define LAYERTRACER_SHARED(type, name, count)                     \
  static_assert((count) * sizeof(type) <= emulator::kShared * 8); \
  auto* name = reinterpret_cast<type*>(emulator::shared.data())
#define LAYERTRACER_LAUNCH(kernel, blocks, stream, ...) \
  (static_cast<void>(stream), emulator::launch([=] { kernel(__VA_ARGS__); }, blocks, kThreads))

inline void __syncthreads() { emulator::stop(emulator::State::kAtBlockBarrier); }

inline double __shfl_down_sync(unsigned mask, double value, int offset) {
  if (mask != 0xffffffffu) std::abort();  // partial warps are not emulated
  const unsigned own = emulator::thread.x;
  emulator::exchanged[own] = value;
  emulator::stop(emulator::State::kAtWarpBarrier);
  const bool inside = own % emulator::kWarp + offset < emulator::kWarp;
  const double moved = emulator::exchanged[inside ? own + offset : own];
  emulator::stop(emulator::State::kAtWarpBarrier);
  return moved;
}
