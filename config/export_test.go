package config

import (
	"maps"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus"
)

// SharedMemoryKeys are the keys under extra that a SharedMemoryConnector's definition is
// checked for.
func SharedMemoryKeys() []string { return slices.Sorted(maps.Keys(extraRules[SharedMemory])) }

// Policies, TensorTransports and Routings are the words of the bus's enumerations.
func Policies() []string { return wordsOf[string, bus.Policy]() }

func TensorTransports() []string { return wordsOf[string, bus.TensorTransport]() }

func Routings() []string { return wordsOf[string, bus.Routing]() }
