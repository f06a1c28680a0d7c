// A CPU allocator for PyTorch that counts as its CUDA caching allocator counts "allocated" bytes.
//
// Blocks are rounded up to 512 bytes (c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, round_size), a capacity raises
// c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError. Only threads that opted in count, and only while
// they are not paused: collectives' worker threads and host tensors stay out. A block remembers that it was counted, so
// it may be freed by any thread.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>

namespace {

constexpr int64_t kBlock = 512;

thread_local bool tls_counting = false;
std::atomic<int64_t> current{0}, peak{0}, capacity{-1}, allocations{0}, failed_request{-1};
std::mutex blocks_lock;
// Never destroyed: tensors with static lifetime are freed after this library's own statics would be.
auto& blocks = *new std::unordered_map<void*, int64_t>();
c10::Allocator* host = nullptr;

int64_t rounded(size_t n) {
  return n == 0 ? 0 : ((static_cast<int64_t>(n) + kBlock - 1) / kBlock) * kBlock;
}

std::string size_text(int64_t bytes) {
  char text[64];
  if (bytes <= 1024) {
    std::snprintf(text, sizeof text, "%lld bytes", static_cast<long long>(bytes));
  } else if (bytes <= 1048576) {
    std::snprintf(text, sizeof text, "%.2f KiB", bytes / 1024.0);
  } else if (bytes <= 1073741824) {
    std::snprintf(text, sizeof text, "%.2f MiB", bytes / 1048576.0);
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", bytes / 1073741824.0);
  }
  return text;
}

void reserve(size_t n) {
  const int64_t bytes = rounded(n);
  const int64_t now = current.fetch_add(bytes) + bytes;
  const int64_t limit = capacity.load(std::memory_order_relaxed);
  if (limit >= 0 && now > limit) {
    current.fetch_sub(bytes);
    failed_request.store(static_cast<int64_t>(n));
    const int64_t used = now - bytes;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false,
        "CUDA out of memory. Tried to allocate ", size_text(static_cast<int64_t>(n)), ". GPU 0 has a total capacity of ",
        size_text(limit), " of which ", size_text(limit - used), " is free. Including non-PyTorch memory, this process has ",
        size_text(used), " memory in use. Of the allocated memory ", size_text(used), " is allocated by PyTorch, and ", size_text(0),
        " is reserved by PyTorch but unallocated. (Simulated capacity of a trial on the CPU.)");
  }
  allocations.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

void release(void* data) {
  int64_t bytes = 0;
  {
    std::lock_guard<std::mutex> hold(blocks_lock);
    const auto found = blocks.find(data);
    if (found == blocks.end()) return;
    bytes = found->second;
    blocks.erase(found);
  }
  current.fetch_sub(bytes);
}

void delete_block(void* data) {
  if (data == nullptr) return;
  release(data);
  host->raw_deallocate(data);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const bool counted = tls_counting && n > 0;
    if (counted) reserve(n);
    void* data = nullptr;
    try {
      data = host->raw_allocate(n);
    } catch (...) {
      if (counted) current.fetch_sub(rounded(n));
      throw;
    }
    if (counted) {
      std::lock_guard<std::mutex> hold(blocks_lock);
      blocks[data] = rounded(n);
    }
    return {data, data, &delete_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
};

}  // namespace

extern "C" {

int counting_install() {
  if (host != nullptr) return 1;
  host = c10::GetCPUAllocator();
  static auto* allocator = new CountingAllocator();
  c10::SetCPUAllocator(allocator, /*priority=*/100);
  return c10::GetCPUAllocator() == allocator ? 0 : 2;
}
int counting_thread(int on) {
  const int before = tls_counting ? 1 : 0;
  tls_counting = on != 0;
  return before;
}
int64_t counting_current() { return current.load(); }
int64_t counting_peak() { return peak.load(); }
void counting_reset_peak() { peak.store(current.load()); }
void counting_set_capacity(int64_t bytes) { capacity.store(bytes); }
int64_t counting_allocations() { return allocations.load(); }
int64_t counting_failed_request() { return failed_request.load(); }
int64_t counting_block(void* data) {
  std::lock_guard<std::mutex> hold(blocks_lock);
  const auto found = blocks.find(data);
  return found == blocks.end() ? 0 : found->second;
}
}
