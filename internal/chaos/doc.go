// Package chaos holds the tests that kill processes of a bus. It has no code
// of its own.
//
// A test hosts a bus whose stages and callers are processes, in Go and in
// Python, and kills the processes while requests are in flight: with SIGKILL at
// random moments and at named points in the code (see package faultpoint), and
// with SIGSTOP. Every result must arrive once, in order and as it was sent. At
// the end no memory, descriptor or process is left. TestHostKilled kills the
// host instead. In TestBadPeers clients break the protocol towards the host, in
// TestBadLanes towards each other.
//
// TestChaosDirect and TestChaosDirectPython do the same to pipelines whose
// deliveries take the direct path and are handled at most once. There a request
// may fail, and its error must then name a process that was killed or stopped.
// No payload may change while a process reads it, even after the death of a
// process that made or forwarded it.
//
// TestChaosDrops has an edge with the policy drop-oldest between two stages, with
// at-most-once and with at-least-once handling. The consumer counts the dropped
// deliveries, and the newest delivery always arrives.
//
// TestChaosGPU does the same to pipelines that carry tensors in the memory of GPUs.
// The GPUs are emulated, or real with -chaos.driver cuda in a test binary that is built
// with the tag cuda (go test -c -tags cuda). A request may also fail because a tensor of
// a dead process was never completed. No tensor may be read that differs from the one
// that was made, and a process that ends well leaves nothing on its GPU.
//
// A kill counts when the host's accounts show, at the victim's death, that the victim
// held a delivery, a result, or space that it was filling; on the direct path, an
// open stream. The run goes on until the wanted number of kills has counted. All
// choices come from a seed, which is printed and can be given with -chaos.seed; the
// scheduling of the machine still differs from run to run. The figures at the end are the
// time from the death of a process, which its pidfd reports, until everything that it
// held is reclaimed. The pages of freed memory do not count: the kernel may still be
// freeing them.
//
// The flags are for the long run:
//
//	go test ./internal/chaos -v -timeout 30m -chaos.kills 1000 -chaos.direct 1000 -chaos.gpu 1000 -chaos.hosts 50
package chaos
