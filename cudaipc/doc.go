// Package cudaipc is what the GPU tensor lane asks of a GPU: a small [Driver],
// with two backends that pass one suite (cudaipc/drivertest).
//
//   - cudaipc/cuda drives NVIDIA GPUs through libcuda, which it loads when it is
//     opened. It is linked with the build tag cuda; without the tag, and on
//     machines without the library, opening it is a clean error.
//   - cudaipc/emul is a GPU made of shared memory and goroutines, for machines
//     without one: the same calls, the same order, the same errors.
//
// Above the driver, cudaipc/pool hands out chunks of device memory whose
// lifetime is that of objects in a store, and cudaipc/lane carries tensors from
// process to process in them.
//
// # Addresses
//
// A [Ptr] is an address that the device can use, and means something in this
// process alone. Between processes memory travels as a descriptor ([Arena]) or
// as a handle ([Handle]), which name whole allocations: what is sent beside
// them is an offset.
//
// # Order
//
// The operations of one [Stream] run one after the other, in the order in which
// they were submitted; those of two streams in no order, unless an [Event] or a
// word says so. A word is 32 bits of host memory that streams write and wait
// for, behind and before the operations around, and that the CPU sees and
// changes too: nothing ever polls the GPU. Waiting compares in a circle: a word
// has reached v when int32(word-v) >= 0.
//
// # Failures
//
// A call that fails returns an [*Error] with the driver's own number, wrapped
// around one of the errors of this package. After an [ErrSticky] the device is
// of no use to this process any more: all calls on it fail the same way.
//
// # Concurrency
//
// All methods are safe for concurrent use. A driver makes the calls on one device
// one after the other, so many operations are best submitted at once.
package cudaipc
