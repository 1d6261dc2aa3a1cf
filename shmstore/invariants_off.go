//go:build !race && !invariants

package shmstore

// The parts below are described in invariants_on.go. They cost nothing.

const invariantsOn = false

type leaseSerial struct{}

type leaseBook struct{}

func (*leaseBook) open() leaseSerial         { return leaseSerial{} }
func (*leaseBook) close(leaseSerial, *Lease) {}
