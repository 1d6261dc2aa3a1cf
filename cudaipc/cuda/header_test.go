//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// includeVariable names the folder of NVIDIA's cuda.h.
const includeVariable = "OMNIBUS_CUDA_INCLUDE"

// TestHeader compares with cuda.h: the signatures of the fake, by compiling it with that header;
// the numbers and the structures of this package; and for each symbol the version and the name of
// the signature.
func TestHeader(t *testing.T) {
	include := os.Getenv(includeVariable)
	if include == "" {
		t.Skip(includeVariable + " does not name the folder of cuda.h")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	check := filepath.Join(t.TempDir(), "check.c")
	if err := os.WriteFile(check, assertions(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"testdata/fake/control.c", "testdata/fake/memory.c", "testdata/fake/stream.c", check} {
		args := []string{"-fsyntax-only", "-Werror=incompatible-pointer-types", "-Wno-enum-conversion", "-DREAL_HEADER", "-I", include, source}
		if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", source, err, out)
		}
	}
	types, err := os.ReadFile(filepath.Join(include, "cudaTypedefs.h"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range specs {
		s := &specs[i]
		if signature := fmt.Sprintf("PFN_%s_v%d)", s.name, s.version); !bytes.Contains(types, []byte(signature)) {
			t.Errorf("no signature of %s came with version %d", s.name, s.version)
		}
	}
}

// assertions returns a C file that compiles if the numbers of this package equal those of the
// header.
func assertions() []byte {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <cuda.h>\n")
	assert := func(expression string, want any) {
		fmt.Fprintf(&b, "_Static_assert((%s) == %v, %q);\n", expression, want, expression)
	}
	for c, m := range meanings {
		if c != missing {
			assert(m.name, c)
		}
	}
	for name, value := range map[string]int{
		"CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED":           attrReadOnlyHostRegister,
		"CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED":         attrVirtualMemory,
		"CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": attrDescriptors,
		"CU_STREAM_NON_BLOCKING":                                          streamNonBlocking,
		"(unsigned long)CU_STREAM_LEGACY":                                 int(cudaipc.LegacyStream),
		"(unsigned long)CU_STREAM_PER_THREAD":                             streamPerThread,
		"CU_EVENT_DISABLE_TIMING":                                         eventDisableTiming,
		"CU_STREAM_WRITE_VALUE_DEFAULT":                                   writeValueDefault,
		"CU_STREAM_WAIT_VALUE_GEQ":                                        waitValueGEQ,
		"CU_MEMHOSTREGISTER_PORTABLE":                                     hostPortable,
		"CU_MEMHOSTREGISTER_DEVICEMAP":                                    hostDeviceMap,
		"CU_MEMHOSTREGISTER_READ_ONLY":                                    hostReadOnly,
		"CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS":                              ipcLazyPeerAccess,
		"CU_IPC_HANDLE_SIZE":                                              64,
		"CU_POINTER_ATTRIBUTE_MEMORY_TYPE":                                pointerMemoryType,
		"CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE":                 pointerLegacyIPC,
		"CU_MEMORYTYPE_HOST":                                              memoryHost,
		"CU_MEMORYTYPE_UNIFIED":                                           memoryUnified,
		"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR":                        handleDescriptor,
		"CU_MEM_ALLOCATION_TYPE_PINNED":                                   allocationPinned,
		"CU_MEM_LOCATION_TYPE_DEVICE":                                     locationDevice,
		"CU_MEM_ACCESS_FLAGS_PROT_READWRITE":                              accessReadWrite,
		"CU_MEM_ALLOC_GRANULARITY_MINIMUM":                                granularityMinimum,
		"CU_STREAM_CAPTURE_MODE_RELAXED":                                  captureRelaxed,
		"CU_GET_PROC_ADDRESS_DEFAULT":                                     procAddressDefault,
	} {
		assert(name, value)
	}
	structure := func(of reflect.Type, name string, fields map[string]string) {
		assert("sizeof("+name+")", of.Size())
		for own, theirs := range fields {
			assert("offsetof("+name+", "+theirs+")", offset(of, own))
		}
	}
	structure(reflect.TypeFor[location](), "CUmemLocation", map[string]string{"kind": "type", "id": "id"})
	structure(reflect.TypeFor[allocation](), "CUmemAllocationProp", map[string]string{
		"kind": "type", "handles": "requestedHandleTypes", "where": "location", "win32": "win32HandleMetaData",
		"compress": "allocFlags.compressionType", "rdma": "allocFlags.gpuDirectRDMACapable",
		"usage": "allocFlags.usage", "reserved": "allocFlags.reserved",
	})
	structure(reflect.TypeFor[access](), "CUmemAccessDesc", map[string]string{"where": "location", "flags": "flags"})
	structure(reflect.TypeFor[rectangle](), "CUDA_MEMCPY2D", map[string]string{
		"src.x": "srcXInBytes", "src.y": "srcY", "src.kind": "srcMemoryType", "src.host": "srcHost",
		"src.device": "srcDevice", "src.array": "srcArray", "src.pitch": "srcPitch",
		"dst.x": "dstXInBytes", "dst.y": "dstY", "dst.kind": "dstMemoryType", "dst.host": "dstHost",
		"dst.device": "dstDevice", "dst.array": "dstArray", "dst.pitch": "dstPitch",
		"width": "WidthInBytes", "lines": "Height",
	})
	assert("sizeof(CUuuid)", 16)
	// The header maps each base name to the exported name. That of a UUID has both names in some
	// versions.
	b.WriteString("#define TEXT(x) #x\n#define EXPORT(x) TEXT(x)\n")
	for i := range specs {
		s := &specs[i]
		fmt.Fprintf(&b, "__typeof__(%s) *check_%s = %s;\n", s.export, s.export, s.name)
		if s.name != "cuDeviceGetUuid" {
			assert("sizeof EXPORT("+s.name+")", len(s.export)+1)
		}
	}
	return []byte(b.String())
}

// offset returns the offset of a field, by its path.
func offset(of reflect.Type, path string) (n uintptr) {
	for name := range strings.SplitSeq(path, ".") {
		f, ok := of.FieldByName(name)
		if !ok {
			panic("no field " + path)
		}
		n += f.Offset
		of = f.Type
	}
	return n
}
