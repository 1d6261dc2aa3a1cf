// Package drivertest is the suite that every driver of package cudaipc passes. A driver's tests
// call it with a function that opens the driver:
//
//	func open() (cudaipc.Driver, error) { return emul.New(emul.Options{}) }
//
//	func TestMain(m *testing.M) { drivertest.Main(m, open) }
//
//	func TestDriver(t *testing.T) { drivertest.Run(t, open) }
//
// Much of the contract is about two processes. The second one is the test binary itself, run again:
// [Main] detects that, opens the driver there, and executes the suite's requests until the suite
// closes the connection.
//
// The suite measures no times. To delay an operation, it puts a wait for a word before it, and
// writes the word later. A copy that is overtaken shows best with a driver whose copies are slow.
//
// Features that a device lacks, by its Caps, are skipped after a check that it refuses them. With a
// driver that is not available here (ErrNotBuilt, ErrNoDriver or ErrNoDevice) all tests are
// skipped.
package drivertest
