// Package lockorder has the mutexes of the concurrent packages, and the order in which a
// goroutine takes them.
//
// The type of a mutex names its class. A class stands for a field of a type, over all its
// instances. The file order.go ranks the classes.
//
//	type outputs struct {
//		mu lockorder.Mutex[lockorder.Outputs]
//	}
//
// In a normal build each mutex is an alias of that of package sync, and [AssertNone] is empty.
// With the build tag lockcheck, which needs amd64 or arm64, a goroutine that takes a lock out of
// order ends the process, with the stacks at which it took both locks. No deadlock has to happen
// for that.
//
// The rules that the tag checks:
//
//   - Lock and RLock take a class only while all classes that the goroutine holds have lesser
//     ranks. So a goroutine never holds two locks of one class, nor two of one rank.
//   - TryLock never blocks, and is allowed at any rank. The lock counts as held.
//   - The goroutine that locks holds the lock until it is unlocked, on any goroutine. A
//     goroutine that unlocks a [RWMutex] for reading ends its own hold, or that of another
//     reader if it has none.
//   - A [Right] is a mutex that guards no data: the right to run, to handle or to read. A goroutine
//     may wait and call handlers while it has a Right. So every Right ranks before every other lock.
package lockorder
