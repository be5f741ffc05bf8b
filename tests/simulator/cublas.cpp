// cuBLASLt over host memory: the functions that our executor uses, with their documented behaviour.
//
// A stand-in for libcublasLt.so.12, in the same library as the driver, whose streams it puts its work on. It describes products
// by real descriptors, and refuses with a reason what is unknown, of a wrong size, or legal but never ours: other layouts than a
// transposed A before a plain B, other types than 16-bit floats with sums in f32 and results in f32 or, of bf16, in bf16, and
// results that are added to what is there but of f32.
//
// Two algorithms are proposed: one that needs a workspace, where the preference allows it, before one that needs none. Each keeps
// the shape and the alignments that it was chosen for, and what does not fit them is refused.
//
// Not here: what is done with a launch's arithmetic beyond f32 sums in the order of the depth.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "log.h"
#include "state.h"
#include "wrong.h"

namespace simulator {

// cublasStatus_t.
enum Status : unsigned { INVALID = 7, ARCH_MISMATCH = 8, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };

// Of cudaDataType_t, cublasComputeType_t, cublasOperation_t and cublasLtEpilogue_t.
enum : unsigned { F32 = 0, F16 = 2, BF16 = 14, COMPUTE_F32 = 68, PLAIN = 0, TRANSPOSED = 1 };
enum : unsigned { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32, EPILOGUE_GELU_BIAS = 36 };

struct Handle {
    Device* device;
};

struct Product {
    unsigned compute, scale;
    unsigned a = PLAIN, b = PLAIN, epilogue = EPILOGUE_DEFAULT, bias_type = ~0u;
    std::uintptr_t bias = 0;
};

struct Layout {
    unsigned type;
    std::uint64_t rows, columns;
    std::int64_t stride;
    std::size_t element_bytes() const { return type == F32 ? 4 : 2; }
    std::size_t bytes() const { return ((columns - 1) * std::size_t(stride) + rows) * element_bytes(); }
};

struct Preference {
    std::uint64_t workspace_bytes = 0;
    unsigned alignments[4] = {256, 256, 256, 256};  // a, b, c, d
};

// cublasLtMatmulAlgo_t: 64 bytes.
struct Algorithm {
    std::uint32_t magic, workspace_bytes;
    std::uint32_t rows, columns, depth;
    std::uint32_t strides[3];  // a, b, d
    std::uint32_t type, result_type, epilogue;
    std::uint16_t alignments[4];
    std::uint32_t padding[3];
};
static_assert(sizeof(Algorithm) == 64);
constexpr std::uint32_t MAGIC = 0x62657274;

struct Heuristic {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    unsigned state;
    float waves;
    int reserved[4];
};

// What is alive, under the lock.
template <typename Thing>
static std::set<Thing*>& all() {
    static std::set<Thing*>& all = *new std::set<Thing*>;
    return all;
}

template <typename Thing>
static Thing& known(void* handle, const char* what) {
    auto* thing = static_cast<Thing*>(handle);
    if (all<Thing>().count(thing) == 0) throw Failure{INVALID, std::string("no ") + what + " of this library"};
    return *thing;
}

template <typename Thing>
static unsigned make(void** handle, Thing thing) {
    if (handle == nullptr) return INVALID;
    auto* made = new Thing(thing);
    all<Thing>().insert(made);
    *handle = made;
    return SUCCESS;
}

template <typename Thing>
static unsigned destroy(void* handle, const char* what) {
    Thing* thing = &known<Thing>(handle, what);
    all<Thing>().erase(thing);
    delete thing;
    return SUCCESS;
}

// As `call`, with what the driver would answer as the library's status.
static unsigned library_call(const char* name, Needs needs, const std::function<unsigned(Call&)>& body) {
    const unsigned result = call(name, needs, body);
    switch (result) {
        case 0:
        case 1:
        case 3:
        case 7:
        case 8:
        case 11:
        case 13:
        case 14:
        case 15:
        case 16: return result;
        default: return EXECUTION_FAILED;
    }
}

template <typename Value>
static Value value_of(const void* value, std::size_t bytes, const char* what) {
    if (value == nullptr || bytes != sizeof(Value)) {
        throw Failure{INVALID, std::string(what) + " has " + std::to_string(sizeof(Value)) + " bytes, not " + std::to_string(bytes)};
    }
    Value read;
    std::memcpy(&read, value, sizeof read);
    return read;
}

static bool is_half(unsigned type) { return type == F16 || type == BF16; }

static bool adds_bias(const Product& product) {
    return product.epilogue == EPILOGUE_BIAS || product.epilogue == EPILOGUE_GELU_BIAS;
}

// Refuses what no algorithm here computes.
static void check_product(const Device& device, const Product& product, const Layout& a, const Layout& b, const Layout& c,
                          const Layout& d) {
    if (&c != &d) throw Failure{UNSUPPORTED, "a result in another place than what is added to it"};
    if (product.compute != COMPUTE_F32 || product.scale != F32) throw Failure{UNSUPPORTED, "sums that are not in f32"};
    if (product.a != TRANSPOSED || product.b != PLAIN) throw Failure{UNSUPPORTED, "operands in another order"};
    if (!is_half(a.type) || a.type != b.type) throw Failure{UNSUPPORTED, "types of a product that is not ours"};
    if (d.type != F32 && (d.type != BF16 || a.type != BF16)) throw Failure{UNSUPPORTED, "a result of a type that is not ours"};
    if (a.type == BF16 && device.facts->major < 8) throw Failure{ARCH_MISMATCH, "bf16 before capability 8.0"};
    if (a.rows != b.rows || a.columns != d.rows || b.columns != d.columns) throw Failure{INVALID, "shapes that do not fit"};
    if (adds_bias(product) && product.bias_type != d.type) throw Failure{UNSUPPORTED, "a bias of another type than the result's"};
    if (adds_bias(product) && product.bias == 0) throw Failure{INVALID, "an epilogue with a bias that is nowhere"};
}

// What an algorithm is chosen by, but the alignments and the workspace.
static Algorithm algorithm_for(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
    Algorithm algorithm{};
    algorithm.magic = MAGIC;
    algorithm.rows = std::uint32_t(d.rows), algorithm.columns = std::uint32_t(d.columns);
    algorithm.depth = std::uint32_t(a.rows);
    algorithm.strides[0] = std::uint32_t(a.stride), algorithm.strides[1] = std::uint32_t(b.stride);
    algorithm.strides[2] = std::uint32_t(d.stride);
    algorithm.type = a.type, algorithm.result_type = d.type, algorithm.epilogue = product.epilogue;
    return algorithm;
}

// ---- the arithmetic

static void widen(const std::uint16_t* from, float* to, std::size_t count, bool bf16) {
    for (std::size_t i = 0; i < count; i++) {
        if (bf16) {
            to[i] = __builtin_bit_cast(float, std::uint32_t(from[i]) << 16);
        } else {
            to[i] = float(__builtin_bit_cast(_Float16, from[i]));
        }
    }
}

static float gelu(float x) { return 0.5f * x * (1.0f + std::tanh(0.7978846f * (x + 0.044715f * x * x * x))); }

struct Work {
    Algorithm algorithm;
    const std::uint16_t *a, *b;
    const void* bias;  // or null
    void* d;
    float factor;
    bool adds;
};

// A number of a matrix of results, or of a bias.
static float number_at(const void* numbers, std::size_t index, bool bf16) {
    float value;
    if (bf16) {
        widen(static_cast<const std::uint16_t*>(numbers) + index, &value, 1, true);
    } else {
        value = static_cast<const float*>(numbers)[index];
    }
    return value;
}

static std::uint16_t bf16_of(float value) {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    if (value != value) return 0x7fff;
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rows of `d` as we see them: one for each column of b.
static void multiply(const Work& work) {
    const std::size_t depth = work.algorithm.depth, columns = work.algorithm.rows;
    const bool bf16 = work.algorithm.type == BF16, bf16_result = work.algorithm.result_type == BF16;
    const bool is_gelu = work.algorithm.epilogue == EPILOGUE_GELU || work.algorithm.epilogue == EPILOGUE_GELU_BIAS;
    std::vector<float> w(depth * columns), x(depth), sums(columns);
    // [depth, columns]: the columns' sums are formed side by side.
    for (std::size_t column = 0; column < columns; column++) {
        widen(work.a + column * std::size_t(work.algorithm.strides[0]), x.data(), depth, bf16);
        for (std::size_t k = 0; k < depth; k++) w[k * columns + column] = x[k];
    }
    for (std::size_t row = 0; row < work.algorithm.columns; row++) {
        widen(work.b + row * std::size_t(work.algorithm.strides[1]), x.data(), depth, bf16);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (std::size_t k = 0; k < depth; k++) {
            for (std::size_t column = 0; column < columns; column++) sums[column] += x[k] * w[k * columns + column];
        }
        const std::size_t first = row * std::size_t(work.algorithm.strides[2]);
        for (std::size_t column = 0; column < columns; column++) {
            float value = sums[column] * work.factor;
            if (work.adds) value += number_at(work.d, first + column, bf16_result);
            if (work.bias != nullptr) value += number_at(work.bias, column, bf16_result);
            if (is_gelu) value = gelu(value);
            if (bf16_result) {
                static_cast<std::uint16_t*>(work.d)[first + column] = bf16_of(value);
            } else {
                static_cast<float*>(work.d)[first + column] = value;
            }
        }
    }
}

// Whether all bytes are of one allocation of this device.
static bool is_of(const Device& device, const void* address, std::size_t bytes) {
    return owner(reinterpret_cast<std::uintptr_t>(address), bytes) == &device;
}

static unsigned run(const Work& work, Device& device, bool reachable) {
    std::string reason = "an operand is not within one allocation of the device";
    unsigned code = reachable ? unsigned(SUCCESS) : unsigned(ILLEGAL_ADDRESS);
    if (reachable) {
        multiply(work);
        const std::lock_guard held(lock());
        if (!slack_is_intact(device, reason)) code = ILLEGAL_ADDRESS;
    }
    if (code != SUCCESS) std::fprintf(stderr, "simulator: cublasLtMatmul failed: %s\n", reason.c_str());
    return code;
}

}  // namespace simulator

using namespace simulator;

extern "C" __attribute__((visibility("default"))) std::size_t cublasLtGetVersion() {
    if (log_wanted()) log_line("call cublasLtGetVersion result=0");
    return 120902;
}

EXPORT cublasLtCreate(void** handle) {
    return library_call("cublasLtCreate", Needs::context, [&](Call& call) { return make(handle, Handle{&call.device()}); });
}

EXPORT cublasLtDestroy(void* handle) {
    return library_call("cublasLtDestroy", Needs::context, [&](Call& call) -> unsigned {
        if (known<Handle>(handle, "handle").device != &call.device()) throw Failure{INVALID, "a handle of another context"};
        return destroy<Handle>(handle, "handle");
    });
}

EXPORT cublasLtMatmulDescCreate(void** product, unsigned compute, unsigned scale) {
    return library_call("cublasLtMatmulDescCreate", Needs::nothing,
                        [&](Call&) { return make(product, Product{compute, scale}); });
}

EXPORT cublasLtMatmulDescDestroy(void* product) {
    return library_call("cublasLtMatmulDescDestroy", Needs::nothing,
                        [&](Call&) { return destroy<Product>(product, "product"); });
}

EXPORT cublasLtMatmulDescSetAttribute(void* handle, unsigned attribute, const void* value, std::size_t bytes) {
    return library_call("cublasLtMatmulDescSetAttribute", Needs::nothing, [&](Call& call) -> unsigned {
        call.say("attribute", attribute);
        auto& product = known<Product>(handle, "product");
        const auto number = [&](const char* what) { return value_of<unsigned>(value, bytes, what); };
        switch (attribute) {
            case 3: product.a = number("TRANSA"); return product.a <= 2 ? SUCCESS : unsigned(INVALID);
            case 4: product.b = number("TRANSB"); return product.b <= 2 ? SUCCESS : unsigned(INVALID);
            case 7: {
                const unsigned epilogue = number("EPILOGUE");
                for (const unsigned known : {EPILOGUE_DEFAULT, EPILOGUE_BIAS, EPILOGUE_GELU, EPILOGUE_GELU_BIAS}) {
                    if (epilogue != known) continue;
                    product.epilogue = epilogue;
                    return SUCCESS;
                }
                throw Failure{INVALID, "epilogue " + std::to_string(epilogue) + " is not simulated"};
            }
            case 8: product.bias = value_of<std::uintptr_t>(value, bytes, "BIAS_POINTER"); return SUCCESS;
            case 26: product.bias_type = number("BIAS_DATA_TYPE"); return SUCCESS;
            default: throw Failure{INVALID, "attribute " + std::to_string(attribute) + " is not simulated"};
        }
    });
}

EXPORT cublasLtMatrixLayoutCreate(void** layout, unsigned type, std::uint64_t rows, std::uint64_t columns,
                                  std::int64_t stride) {
    return library_call("cublasLtMatrixLayoutCreate", Needs::nothing, [&](Call&) -> unsigned {
        if (type != F32 && !is_half(type)) throw Failure{INVALID, "a type that is not simulated"};
        if (rows == 0 || columns == 0 || stride < std::int64_t(rows))
            throw Failure{INVALID, "columns of " + std::to_string(rows) + " that are " + std::to_string(stride) + " apart"};
        return make(layout, Layout{type, rows, columns, stride});
    });
}

EXPORT cublasLtMatrixLayoutDestroy(void* layout) {
    return library_call("cublasLtMatrixLayoutDestroy", Needs::nothing,
                        [&](Call&) { return destroy<Layout>(layout, "layout"); });
}

EXPORT cublasLtMatmulPreferenceCreate(void** preference) {
    return library_call("cublasLtMatmulPreferenceCreate", Needs::nothing,
                        [&](Call&) { return make(preference, Preference{}); });
}

EXPORT cublasLtMatmulPreferenceDestroy(void* preference) {
    return library_call("cublasLtMatmulPreferenceDestroy", Needs::nothing,
                        [&](Call&) { return destroy<Preference>(preference, "preference"); });
}

EXPORT cublasLtMatmulPreferenceSetAttribute(void* handle, unsigned attribute, const void* value, std::size_t bytes) {
    return library_call("cublasLtMatmulPreferenceSetAttribute", Needs::nothing, [&](Call& call) -> unsigned {
        call.say("attribute", attribute);
        auto& preference = known<Preference>(handle, "preference");
        if (attribute == 1) {
            preference.workspace_bytes = value_of<std::uint64_t>(value, bytes, "MAX_WORKSPACE_BYTES");
            return SUCCESS;
        }
        if (attribute < 5 || attribute > 8)
            throw Failure{INVALID, "attribute " + std::to_string(attribute) + " is not simulated"};
        const unsigned alignment = value_of<unsigned>(value, bytes, "MIN_ALIGNMENT_BYTES");
        if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 256)
            throw Failure{INVALID, "an alignment of " + std::to_string(alignment) + " bytes"};
        preference.alignments[attribute - 5] = alignment;
        return SUCCESS;
    });
}

EXPORT cublasLtMatmulAlgoGetHeuristic(void* handle, void* product_handle, void* a_handle, void* b_handle, void* c_handle,
                                      void* d_handle, void* preference_handle, int wanted, Heuristic* results, int* count) {
    return library_call("cublasLtMatmulAlgoGetHeuristic", Needs::context, [&](Call& call) -> unsigned {
        const auto& library = known<Handle>(handle, "handle");
        const auto& product = known<Product>(product_handle, "product");
        const auto &a = known<Layout>(a_handle, "layout"), &b = known<Layout>(b_handle, "layout");
        const auto &c = known<Layout>(c_handle, "layout"), &d = known<Layout>(d_handle, "layout");
        const auto& preference = known<Preference>(preference_handle, "preference");
        if (wanted <= 0 || results == nullptr || count == nullptr) return INVALID;
        call.say("m", d.rows);
        call.say("n", d.columns);
        call.say("k", a.rows);
        call.say("limit", preference.workspace_bytes);
        *count = 0;
        check_product(*library.device, product, a, b, c, d);
        for (const std::uint64_t workspace : {std::uint64_t(4) << 20, std::uint64_t(0)}) {
            if (workspace > preference.workspace_bytes || *count == wanted) continue;
            Algorithm algorithm = algorithm_for(product, a, b, d);
            algorithm.workspace_bytes = std::uint32_t(workspace);
            for (int i = 0; i < 4; i++) algorithm.alignments[i] = std::uint16_t(preference.alignments[i]);
            results[(*count)++] = {algorithm, std::size_t(workspace), 0, 1.0f, {}};
        }
        return SUCCESS;
    });
}

EXPORT cublasLtMatmul(void* handle, void* product_handle, const float* alpha, const void* a_address, void* a_handle,
                      const void* b_address, void* b_handle, const float* beta, const void* c_address, void* c_handle,
                      void* d_address, void* d_handle, const Algorithm* algorithm, void* workspace,
                      std::size_t workspace_bytes, void* stream_handle) {
    return library_call("cublasLtMatmul", Needs::context, [&](Call& call) -> unsigned {
        auto& library = known<Handle>(handle, "handle");
        const auto& product = known<Product>(product_handle, "product");
        const auto &a = known<Layout>(a_handle, "layout"), &b = known<Layout>(b_handle, "layout");
        const auto &c = known<Layout>(c_handle, "layout"), &d = known<Layout>(d_handle, "layout");
        Stream& stream = stream_of(stream_handle);
        Device& device = *stream.device;
        if (&device != &call.device() || library.device != &device)
            throw Failure{INVALID, "stream, handle and context are of different devices"};
        check_product(device, product, a, b, c, d);
        if (algorithm == nullptr || algorithm->magic != MAGIC) throw Failure{INVALID, "no algorithm of this library"};
        const Algorithm& how = *algorithm;
        Algorithm fitting = algorithm_for(product, a, b, d);
        fitting.workspace_bytes = how.workspace_bytes;
        std::copy(std::begin(how.alignments), std::end(how.alignments), fitting.alignments);
        if (std::memcmp(&how, &fitting, sizeof how) != 0) throw Failure{INVALID, "an algorithm for another product"};
        if (how.workspace_bytes > workspace_bytes || (workspace == nullptr && workspace_bytes != 0))
            throw Failure{INVALID, "less workspace than the algorithm needs"};
        if (alpha == nullptr || beta == nullptr || c_address != d_address || (*beta != 0.0f && *beta != 1.0f))
            throw Failure{UNSUPPORTED, "a factor of what is there, or something else added to the result"};
        if (*beta != 0.0f && d.type != F32) throw Failure{UNSUPPORTED, "something added to a result that is rounded"};
        const void* addresses[4] = {a_address, b_address, c_address, d_address};
        for (int i = 0; i < 4; i++) {
            if (reinterpret_cast<std::uintptr_t>(addresses[i]) % how.alignments[i] != 0)
                throw Failure{INVALID, "an address that is not aligned as was said"};
        }
        const void* bias = adds_bias(product) ? reinterpret_cast<const void*>(product.bias) : nullptr;
        if (reinterpret_cast<std::uintptr_t>(bias) % 16 != 0) throw Failure{INVALID, "a bias that is not aligned"};
        const bool reachable = is_of(device, a_address, a.bytes()) && is_of(device, b_address, b.bytes()) &&
                               is_of(device, d_address, d.bytes()) &&
                               (bias == nullptr || is_of(device, bias, d.rows * d.element_bytes()));
        Task task;
        task.what = "product m=" + std::to_string(d.rows) + " n=" + std::to_string(d.columns) +
                    " k=" + std::to_string(a.rows) + " type=" + (a.type == BF16 ? "bf16" : "f16") +
                    " epilogue=" + std::to_string(product.epilogue) + " into=" + (d.type == BF16 ? "bf16" : "f32") +
                    " adds=" + (*beta == 0.0f ? "0" : "1") + " workspace=" + std::to_string(workspace_bytes);
        task.counts = true;
        call.say("stream", stream.number);
        if (log_wanted()) call.log += " " + task.what;
        const Work work{how, static_cast<const std::uint16_t*>(a_address), static_cast<const std::uint16_t*>(b_address),
                        bias, d_address, *alpha, *beta != 0.0f};
        task.run = [work, reachable, &device]() -> unsigned {
            const auto multiply = [&] { return run(work, device, reachable); };
            return is_wrong("cublasLtMatmul") ? store_wrong(device, multiply) : multiply();
        };
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}
