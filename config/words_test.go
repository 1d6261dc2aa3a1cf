package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/config"
)

// TestWordsOfTheBus: each word of the bus's enumerations, which files take, has its name in this package.
func TestWordsOfTheBus(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want []string
	}{
		{"policies", config.Policies(), []string{string(config.PolicyBlock), string(config.PolicyFail), string(config.PolicyDropOldest)}},
		{"transports of tensors", config.TensorTransports(), []string{string(config.TensorsDefault), string(config.TensorsIPC), string(config.TensorsPool)}},
		{"routings", config.Routings(), []string{string(config.RoutingSticky), string(config.RoutingLeastQueue), string(config.RoutingRoundRobin)}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}
