// Package cudaipc defines the operations that the GPU tensor lane needs of a GPU: a small [Driver],
// with two backends that pass one suite (cudaipc/drivertest).
//
//   - cudaipc/cuda drives NVIDIA GPUs through libcuda, which it loads when it is opened. It is
//     linked with the build tag cuda; without the tag, and on machines without the library, Open
//     returns an error.
//   - cudaipc/emul emulates a GPU with shared memory and goroutines, for machines without one: the
//     same calls, the same order, the same errors.
//
// Above the driver, cudaipc/pool allocates chunks of device memory whose lifetime is that of
// objects in a store, and cudaipc/lane sends tensors in them from process to process.
//
// # Addresses
//
// A [Ptr] is an address that the device can use; it is valid in this process alone. Between
// processes memory travels as a descriptor ([Arena]) or as a handle ([Handle]). Both name whole
// allocations, so an offset travels with them.
//
// # Order
//
// The operations of one [Stream] run one after the other, in the order in which they were
// submitted; those of two streams in no order, unless an [Event] or a word orders them. A word is
// 32 bits of host memory that streams write and wait for, in order with their other operations, and
// that the CPU reads and writes too; no process polls the GPU. The comparison wraps around: a word
// has reached v when int32(word-v) >= 0.
//
// # Failures
//
// A call that fails returns an [*Error] with the driver's own code, which wraps one of the errors
// of this package. After an [ErrSticky] this process cannot use the device any more: all calls on
// it return the same error.
//
// # Concurrency
//
// All methods are safe for concurrent use. A driver makes the calls on one device one after the
// other, so a Submit of many operations is cheaper than many Submits.
package cudaipc
