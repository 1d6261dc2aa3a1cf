package doctor

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGPUs: features are listed, a missing feature has its reason, and none is a failure.
func TestGPUs(t *testing.T) {
	device := GPU{
		ID: "GPU-1", Name: "Big", Driver: "cuda 12", TotalBytes: 3 << 20, FreeBytes: 1 << 20,
		Offers: []Offer{
			{Name: "arenas", OK: true, Found: "shared by descriptors", Without: "no pool"},
			{Name: "words", Found: "the container forbids it", Without: "nothing is shared"},
		},
	}
	for name, tt := range map[string]struct {
		gpus GPUs
		want []Check
	}{
		"no driver": {GPUs{Err: errors.New("built without CUDA")}, []Check{{"gpu", Note, "built without CUDA", inHostMemory}}},
		"no device": {GPUs{}, []Check{{"gpu", Note, "the driver has no device", inHostMemory}}},
		"two of one": {GPUs{Devices: []GPU{device, {ID: "GPU-2", Name: "Small", Driver: "cuda 12"}}}, []Check{
			{"gpu 0", OK, "Big, GPU-1, cuda 12, 1 of 3 MiB free", ""},
			{"gpu 0 arenas", OK, "shared by descriptors", ""},
			{"gpu 0 words", Note, "the container forbids it", "nothing is shared"},
			{"gpu 1", OK, "Small, GPU-2, cuda 12, 0 of 0 MiB free", ""},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := gpus(tt.gpus)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !Healthy(got) {
				t.Error("a machine without a GPU is taken for a broken one")
			}
		})
	}
}
