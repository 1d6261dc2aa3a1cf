package cuda

// Options say how the driver is loaded. The zero value loads the one of the
// machine.
type Options struct {
	// Library is the name, or the path, of the driver's library. By default it is
	// libcuda.so.1, wherever the dynamic linker finds it.
	Library string
}

const defaultLibrary = "libcuda.so.1"

func (o Options) libcuda() string {
	if o.Library == "" {
		return defaultLibrary
	}
	return o.Library
}
