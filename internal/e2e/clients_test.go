package e2e

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"samovar/internal/dev"
)

// Clients that are not ours use a volume with two copies.
func TestRealClients(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	const size = 64 * mib
	r.create("tea", size, "n1", "n2")
	r.attach("tea", "n1")
	tcp := "nbd://" + r.node("n1").Config.NBD + "/tea"
	local := "nbd+unix:///tea?socket=" + r.node("n1").Config.Socket
	image, data := picture(t, size)

	t.Run("fio", func(t *testing.T) {
		need(t, "fio", "fio")
		for _, uri := range []string{tcp, local} {
			tool(t, "fio", "--name=tea", "--ioengine=nbd", "--uri="+uri, "--rw=randwrite", "--bsrange=4k-128k", "--blockalign=4k",
				"--iodepth=16", "--size=32m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fsync=200", "--end_fsync=1", "--group_reporting")
		}
	})
	t.Run("qemu-img", func(t *testing.T) {
		need(t, "qemu-img", "qemu-utils")
		tool(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, tcp)
		tool(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", image, local)
		back := filepath.Join(t.TempDir(), "back")
		tool(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", local, back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Errorf("what comes back differs from the image, error %v", err)
		}
	})
	t.Run("qemu-io", func(t *testing.T) {
		need(t, "qemu-io", "qemu-utils")
		tool(t, "qemu-io", "-f", "raw", "-t", "writeback", "-c", "write -P 0x5a 1M 1M", "-c", "write -f -P 0xa5 512 1536",
			"-c", "write -z 1M 64k", "-c", "write -z -u 1152k 64k", "-c", "discard 1280k 64k", "-c", "flush",
			"-c", "read -P 0xa5 512 1536", "-c", "read -P 0x5a 1088k 64k", "-c", "read -P 0 1M 64k", "-c", "read -P 0 1152k 64k", tcp)
	})
	t.Run("nbdcopy", func(t *testing.T) {
		need(t, "nbdcopy", "libnbd-bin")
		tool(t, "nbdcopy", "--flush", "--connections=4", image, tcp)
		back := filepath.Join(t.TempDir(), "back")
		tool(t, "nbdcopy", local, back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Errorf("what comes back differs from the image, error %v", err)
		}
	})
	t.Run("nbdinfo", func(t *testing.T) {
		need(t, "nbdinfo", "libnbd-bin")
		if out := tool(t, "nbdinfo", "--size", tcp); strings.TrimSpace(out) != "67108864" {
			t.Errorf("size %s", out)
		}
		if out := tool(t, "nbdinfo", "--list", "nbd://"+r.node("n2").Config.NBD); !strings.Contains(out, "tea") {
			t.Errorf("list:\n%s", out)
		}
		tool(t, "nbdinfo", "--can", "multi-conn", tcp)
		tool(t, "nbdinfo", "--is", "read-only", tcp+"@ro")
	})
	r.recovered("tea")
}

// need skips a test whose tool is not there, in words that a report can count.
func need(t *testing.T, name, from string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("NOT RUN: %s is not installed (apt-get install %s)", name, from)
	}
}

// tool runs a tool and returns what it printed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = t.TempDir() // fio leaves files behind
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// picture makes an image of random bytes and holes.
func picture(t *testing.T, size int) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	for at := 0; at < size; at += mib {
		random.Read(data[at : at+384<<10]) // never fails
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, data
}
