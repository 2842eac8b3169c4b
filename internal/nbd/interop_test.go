package nbd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"samovar/internal/block"
)

// need skips a test whose tool is not there, in words that a report can count.
func need(t *testing.T, tool, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("NOT RUN: %s is not installed (apt-get install %s)", tool, pkg)
	}
}

// run runs a tool and returns what it printed.
func run(t *testing.T, tool string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Dir = t.TempDir() // fio leaves files behind
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", tool, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// image writes size bytes with holes and text into a file.
func image(t *testing.T, size int) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	for at := 0; at < size; at += 256 << 10 {
		copy(data[at:], pattern(128<<10, byte(at>>18)))
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path, data
}

const interopSize = 8 << 20

// interop serves an empty volume on both kinds of socket.
func interop(t *testing.T, test func(t *testing.T, m *memory, uri string)) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			m := newMemory(interopSize)
			s := serve(t, network, Options{Opener: one(m)})
			test(t, m, s.uri("vol"))
			eventually(t, "every opening is given back", func() bool { now, ever := m.counts(); return now == 0 && ever > 0 })
			if s.log.has("protocol violation") {
				t.Errorf("the session ended badly:\n%s", s.log.text.String())
			}
		})
	}
}

func TestQemuImg(t *testing.T) {
	need(t, "qemu-img", "qemu-utils")
	interop(t, func(t *testing.T, m *memory, uri string) {
		path, data := image(t, interopSize)
		run(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", path, uri)
		if got, stable := m.content(); !bytes.Equal(got, data) || !bytes.Equal(stable, data) {
			t.Error("the volume differs from the image, or is not flushed")
		}
		run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", path, uri)
		back := filepath.Join(t.TempDir(), "back")
		run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", uri, back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the copy differs from the image, error %v", err)
		}
	})
}

func TestQemuIO(t *testing.T) {
	need(t, "qemu-io", "qemu-utils")
	interop(t, func(t *testing.T, m *memory, uri string) {
		// In a write, -f is FUA, -u is "may unmap", without it no hole may come.
		out := run(t, "qemu-io", "-f", "raw", "-t", "writeback", "-c", "write -P 0x5a 1M 1M", "-c", "write -f -P 0xa5 0 64k",
			"-c", "write -z 1M 64k", "-c", "write -z -u 1152k 64k", "-c", "discard 1280k 64k", "-c", "flush",
			"-c", "read -P 0x5a 1088k 64k", "-c", "read -P 0 1M 64k", uri)
		want := make([]byte, interopSize)
		fill(want[1<<20:2<<20], 0x5a)
		fill(want[:64<<10], 0xa5)
		for _, at := range []int{1024, 1152, 1280} {
			clear(want[at<<10 : (at+64)<<10])
		}
		if got, stable := m.content(); !bytes.Equal(got, want) || !bytes.Equal(stable, want) {
			t.Errorf("the volume holds something else, or is not flushed:\n%s", out)
		}
		counts := map[string]int{}
		for _, r := range m.seen() {
			counts[fmt.Sprint(r.Op, r.FUA, r.NoHole)]++
		}
		for _, kind := range []string{
			fmt.Sprint(block.Write, true, false), fmt.Sprint(block.Zero, false, true),
			fmt.Sprint(block.Zero, false, false), fmt.Sprint(block.Trim, false, false),
		} {
			if counts[kind] == 0 {
				t.Errorf("no request of operation, FUA, no-hole %s reached the device: %v", kind, counts)
			}
		}
	})
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

func TestNbdcopy(t *testing.T) {
	need(t, "nbdcopy", "libnbd-bin")
	interop(t, func(t *testing.T, m *memory, uri string) {
		path, data := image(t, interopSize)
		run(t, "nbdcopy", "--flush", "--threads=4", "--connections=4", path, uri)
		if got, stable := m.content(); !bytes.Equal(got, data) || !bytes.Equal(stable, data) {
			t.Error("the volume differs from the image, or is not flushed")
		}
		if _, ever := m.counts(); ever < 4 {
			t.Errorf("nbdcopy used %d connections: CAN_MULTI_CONN was not understood", ever)
		}
		back := filepath.Join(t.TempDir(), "back")
		run(t, "nbdcopy", "--threads=4", "--connections=4", uri, back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the copy differs from the image, error %v", err)
		}
	})
}

func TestNbdinfo(t *testing.T) {
	need(t, "nbdinfo", "libnbd-bin")
	interop(t, func(t *testing.T, m *memory, uri string) {
		var info struct {
			Exports []map[string]any `json:"exports"`
		}
		if err := json.Unmarshal([]byte(run(t, "nbdinfo", "--json", uri)), &info); err != nil || len(info.Exports) != 1 {
			t.Fatalf("%v, %d exports", err, len(info.Exports))
		}
		for key, want := range map[string]any{
			"export-size": float64(interopSize), "is_read_only": false, "can_flush": true, "can_fua": true,
			"can_trim": true, "can_zero": true, "can_multi_conn": true, "block_size_minimum": float64(512),
			"block_size_preferred": float64(4096), "block_size_maximum": float64(32 << 20),
			"description": fmt.Sprintf("volume of %d bytes", interopSize),
		} {
			if got := info.Exports[0][key]; got != want {
				t.Errorf("%s is %v, want %v", key, got, want)
			}
		}
		if list := run(t, "nbdinfo", "--list", strings.Replace(uri, "/vol", "/", 1)); !strings.Contains(list, `export="vol"`) {
			t.Errorf("list:\n%s", list)
		}
		refused := exec.Command("nbdinfo", strings.Replace(uri, "/vol", "/busy", 1))
		if out, err := refused.CombinedOutput(); err == nil {
			t.Errorf("a busy volume was opened:\n%s", out)
		}
	})
}

func TestFio(t *testing.T) {
	need(t, "fio", "fio")
	if out, _ := exec.Command("fio", "--enghelp").CombinedOutput(); !bytes.Contains(out, []byte("nbd")) {
		t.Skip("NOT RUN: fio with the nbd engine is not installed (apt-get install fio)")
	}
	interop(t, func(t *testing.T, m *memory, uri string) {
		// Writes random blocks, reads every one back and checks its checksum.
		out := run(t, "fio", "--name=t", "--ioengine=nbd", "--uri="+uri, "--rw=randwrite", "--bs=4k", "--iodepth=32",
			fmt.Sprintf("--size=%d", interopSize), "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fsync=64",
			"--randseed=1")
		if !strings.Contains(out, "err= 0") {
			t.Errorf("fio:\n%s", out)
		}
		if data, _ := m.content(); bytes.Equal(data, make([]byte, interopSize)) {
			t.Error("nothing was written")
		}
	})
}
