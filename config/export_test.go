package config

import (
	"maps"
	"slices"
)

// SharedMemoryKeys are the keys under extra that a SharedMemoryConnector's definition is
// checked for.
func SharedMemoryKeys() []string { return slices.Sorted(maps.Keys(extraRules[SharedMemory])) }
