// Runs every kernel, CPU and emulated GPU, over many sizes in buffers of exactly that size, and
// compares the two. Built with AddressSanitizer and UndefinedBehaviorSanitizer by `make sanitize`.
#include <random>

#include "harness.cpp"

namespace {

using Bytes = std::vector<char>;

std::mt19937 generator(7);

int64_t below(int64_t limit) {
  return std::uniform_int_distribution<int64_t>(0, limit - 1)(generator);
}

// Random bits: every kind of number, NaN and infinity included; or small numbers only.
Bytes random_tensor(int64_t count, DType dtype, bool tame) {
  Bytes bytes(count * size_of(dtype));
  for (char& byte : bytes) byte = static_cast<char>(generator());
  for (int64_t i = 0; tame && i < count; ++i) {
    char& top = bytes[(i + 1) * size_of(dtype) - 1];
    top = static_cast<char>((top & 0x80) | 0x3b);  // exponents a little below 1
  }
  return bytes;
}

DType random_dtype() { return static_cast<DType>(below(3)); }

int64_t random_count() {
  const int64_t edges[] = {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025, 4099};
  return below(20) == 0 ? kChunkElements + below(3) - 1 : edges[below(std::size(edges))];
}

void expect_equal(const char* what, const std::vector<double>& cpu, const std::vector<double>& gpu,
                  double tolerance) {
  for (size_t i = 0; i < cpu.size(); ++i) {
    const bool same = cpu[i] == gpu[i] || (std::isnan(cpu[i]) && std::isnan(gpu[i]));
    if (same || std::fabs(cpu[i] - gpu[i]) <= tolerance * std::fabs(cpu[i]) + 1e-12) continue;
    std::fprintf(stderr, "%s: number %zu is %.17g on the CPU, %.17g emulated\n", what, i, cpu[i],
                 gpu[i]);
    std::exit(1);
  }
}

void check_reductions() {
  constexpr int64_t kLayers = 4;
  std::vector<Bytes> kept;
  std::vector<Chunk> tensors;
  for (int64_t i = below(6); i > 0; --i) {
    Chunk chunk{};
    chunk.count = random_count();
    chunk.layer = static_cast<int32_t>(below(kLayers));
    chunk.dtype = random_dtype();
    chunk.reference_dtype = random_dtype();
    chunk.weight = static_cast<double>(below(2));
    kept.push_back(random_tensor(chunk.count, chunk.dtype, below(2) == 0));
    chunk.data = kept.back().data();
    kept.push_back(random_tensor(chunk.count, chunk.reference_dtype, true));
    chunk.reference = kept.back().data();
    tensors.push_back(chunk);
  }
  const auto count = static_cast<int64_t>(tensors.size());
  std::vector<double> cpu(kLayers * 4);
  std::vector<double> gpu(kLayers * 4);
  drift(tensors.data(), count, kLayers, cpu.data());
  drift_emulated(tensors.data(), count, kLayers, gpu.data());
  expect_equal("drift", cpu, gpu, 1e-9);
  for (Chunk& chunk : tensors) chunk.reference = nullptr;
  layer_stats(tensors.data(), count, kLayers, cpu.data());
  layer_stats_emulated(tensors.data(), count, kLayers, gpu.data());
  expect_equal("layer_stats", cpu, gpu, 1e-12);
}

void check_lens() {
  const DType dtype = random_dtype();
  const int64_t rows = below(3);
  const int64_t columns = below(3) == 0 ? below(9) : random_count() % 5000;
  const bool tame = below(3) != 0;
  const Bytes p = random_tensor(rows * columns, dtype, tame);
  const Bytes q = random_tensor(rows * columns, dtype, tame);
  const Logits of_p{p.data(), dtype, rows, columns};
  const Logits of_q{q.data(), dtype, rows, columns};
  std::vector<int64_t> targets(rows);
  for (int64_t& target : targets) target = below(columns + 2);
  std::vector<double> sums[2];
  for (int side = 0; side < 2; ++side) {
    const Logits& logits = side == 0 ? of_p : of_q;
    std::vector<LensState> cpu(rows, {-INFINITY, 0.0, -INFINITY});
    std::vector<LensState> gpu = cpu;
    lens(&logits, targets.data(), 1, cpu.data());
    lens_emulated(&logits, targets.data(), 1, gpu.data());
    std::vector<double> emulated;
    for (int64_t row = 0; row < rows; ++row) {
      sums[side].push_back(cpu[row].largest + std::log(cpu[row].sum));
      emulated.push_back(gpu[row].largest + std::log(gpu[row].sum));
      expect_equal("target", {cpu[row].target}, {gpu[row].target}, 0.0);
    }
    expect_equal("log-sum-exp", sums[side], emulated, 1e-6);
  }
  std::vector<double> cpu(rows);
  std::vector<double> gpu(rows);
  divergence(&of_p, &of_q, sums[0].data(), sums[1].data(), cpu.data());
  divergence_emulated(&of_p, &of_q, sums[0].data(), sums[1].data(), gpu.data());
  expect_equal("divergence", cpu, gpu, 1e-5);
}

}  // namespace

int main() {
  for (int round = 0; round < 150; ++round) {
    set_reverse(round % 2);
    set_target(round % 3);
    check_reductions();
    check_lens();
  }
  std::puts("150 rounds over every kernel: nothing found");
}
