package doctor

import "fmt"

// GPUs is a driver's description of the machine's GPUs. The caller asks the driver: this package knows
// none.
type GPUs struct {
	// Err says why there is no driver, or why it failed.
	Err     error
	Devices []GPU
}

// GPU is one device, or a part of one.
type GPU struct {
	ID         string // its UUID
	Name       string
	Driver     string // name and version
	TotalBytes int64
	FreeBytes  int64
	Offers     []Offer
}

// Offer is a feature that lanes of tensors use.
type Offer struct {
	Name string // unique for its device
	OK   bool
	// A description of the feature, or why the device lacks it.
	Found string
	// Without says what lanes do without the feature.
	Without string
}

const inHostMemory = "tensors of GPUs go through host memory"

// gpus reports the GPU features that lanes of tensors use. None of them is required.
func gpus(g GPUs) []Check {
	const name = "gpu"
	switch {
	case g.Err != nil:
		return []Check{note(name, g.Err.Error(), inHostMemory)}
	case len(g.Devices) == 0:
		return []Check{note(name, "the driver has no device", inHostMemory)}
	}
	var all []Check
	for i, d := range g.Devices {
		name := fmt.Sprintf("%s %d", name, i)
		all = append(all, found(name, "%s, %s, %s, %d of %d MiB free", d.Name, d.ID, d.Driver, d.FreeBytes>>20, d.TotalBytes>>20))
		for _, o := range d.Offers {
			c := found(name+" "+o.Name, "%s", o.Found)
			if !o.OK {
				c = note(c.Name, o.Found, o.Without)
			}
			all = append(all, c)
		}
	}
	return all
}
