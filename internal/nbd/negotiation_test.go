package nbd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scripts in testdata")

// TestNegotiationScripts plays testdata/negotiation/*.txt: lines with "C:" are sent, lines with "S:" are what
// the server answered. The words after "C:" are explained in play.
func TestNegotiationScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/negotiation/*.txt")
	if len(files) == 0 {
		t.Fatal("no scripts")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			vol, odd := newMemory(1<<20), newMemory(1<<20+100)
			odd.readOnly = true
			opener := newVolumes(map[string]*memory{"vol": vol, "odd": odd})
			s := serve(t, "unix", Options{Opener: opener})
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, s, string(script))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(script) {
				t.Errorf("got:\n%s\nwant:\n%s", got, script)
			}
			for name, m := range opener.devices {
				eventually(t, name+" is given back", func() bool { now, _ := m.counts(); return now == 0 })
				if _, ever := m.counts(); ever > 0 && !strings.Contains(string(script), "# opens "+name) {
					t.Errorf("%s was opened", name)
				}
			}
		})
	}
}

// play sends the script's client lines and returns the script with what the server really answered.
func play(t *testing.T, s *testServer, script string) string {
	r := s.dial(t)
	defer r.Close()
	in := bufio.NewReader(r)
	var out strings.Builder
	print := func(format string, args ...any) { fmt.Fprintf(&out, "S: "+format+"\n", args...) }
	greeted := false
	zeroes := 124
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "S:") {
			continue
		}
		out.WriteString(line)
		if !strings.HasPrefix(line, "C:") {
			continue
		}
		if !greeted {
			b := make([]byte, 18)
			io.ReadFull(in, b)
			print("greeting %s %s flags %d", b[:8], b[8:16], binary.BigEndian.Uint16(b[16:]))
			greeted = true
		}
		words := strings.Fields(line)[1:]
		switch words[0] {
		case "flags": // flags N: the client's flags
			n, _ := strconv.Atoi(words[1])
			if n&flagNoZeroes != 0 {
				zeroes = 0
			}
			r.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
			if n > 3 {
				printEnd(in, print)
			}
		case "option": // option N HEX or N zeroes=COUNT
			n, _ := strconv.Atoi(words[1])
			data := optionData(words[2:])
			r.Write(append(appendOption(nil, option(n), len(data)), data...))
			printReplies(in, print)
		case "info", "go": // info NAME TYPE...
			opt := map[string]option{"info": optInfo, "go": optGo}[words[0]]
			r.Write(infoRequest(opt, words[1], words[2:]))
			printReplies(in, print)
		case "export": // export NAME, the old way
			r.Write(append(appendOption(nil, optExportName, len(words[1])), words[1]...))
			b := make([]byte, 10+zeroes)
			if _, err := io.ReadFull(in, b); err != nil {
				print("closed")
				break
			}
			print("size %d flags %#x and %d zeroes: %t", binary.BigEndian.Uint64(b), binary.BigEndian.Uint16(b[8:]),
				zeroes, !bytes.ContainsFunc(b[10:], func(c rune) bool { return c != 0 }))
		case "raw": // raw HEX: then the server closes
			b, _ := hex.DecodeString(words[1])
			r.Write(b)
			printEnd(in, print)
		case "disconnect": // the transmission phase was entered, and ends
			r.Write(requestBytes(cmdDisc, 0, 0, 0, 0))
			printEnd(in, print)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return out.String()
}

func optionData(words []string) []byte {
	if len(words) == 0 {
		return nil
	}
	if count, ok := strings.CutPrefix(words[0], "zeroes="); ok {
		n, _ := strconv.Atoi(count)
		return make([]byte, n)
	}
	data, _ := hex.DecodeString(words[0])
	return data
}

func infoRequest(opt option, name string, types []string) []byte {
	if name == `""` {
		name = ""
	}
	b := appendOption(nil, opt, 4+len(name)+2+2*len(types))
	b = binary.BigEndian.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(types)))
	for _, word := range types {
		n, _ := strconv.Atoi(word)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	return b
}

func printEnd(in io.Reader, print func(string, ...any)) {
	n, err := io.Copy(io.Discard, in)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		print("still open")
		return
	}
	print("closed after %d bytes", n)
}

var replyNames = map[optionReply]string{
	repAck: "ACK", repServer: "SERVER", repInfo: "INFO", repErrUnsup: "ERR_UNSUP", repErrPolicy: "ERR_POLICY",
	repErrInvalid: "ERR_INVALID", repErrUnknown: "ERR_UNKNOWN", repErrShutdown: "ERR_SHUTDOWN", repErrTooBig: "ERR_TOO_BIG",
}

// printReplies prints replies up to the final one.
func printReplies(in io.Reader, print func(string, ...any)) {
	for {
		b := make([]byte, replyHeaderSize)
		if _, err := io.ReadFull(in, b); err != nil {
			print("closed")
			return
		}
		if binary.BigEndian.Uint64(b) != magicOptionReply {
			print("wrong magic %x", b[:8])
			return
		}
		opt, kind := binary.BigEndian.Uint32(b[8:]), optionReply(binary.BigEndian.Uint32(b[12:]))
		data := make([]byte, binary.BigEndian.Uint32(b[16:]))
		io.ReadFull(in, data)
		switch {
		case kind == repServer:
			print("%d SERVER %q", opt, data[4:])
		case kind == repInfo:
			print("%d INFO %s", opt, infoText(data))
		case kind&repError != 0:
			print("%d %s %q", opt, replyNames[kind], data)
			return
		default:
			print("%d %s", opt, replyNames[kind])
			return
		}
	}
}

func infoText(data []byte) string {
	kind, data := infoType(binary.BigEndian.Uint16(data)), data[2:]
	switch kind {
	case infoExport:
		return fmt.Sprintf("size %d flags %#x", binary.BigEndian.Uint64(data), binary.BigEndian.Uint16(data[8:]))
	case infoBlockSize:
		return fmt.Sprintf("blocks min %d preferred %d max %d", binary.BigEndian.Uint32(data),
			binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint32(data[8:]))
	default:
		return fmt.Sprintf("type %d %q", kind, data)
	}
}

func TestNegotiationDeadline(t *testing.T) {
	s := serve(t, "unix", Options{Opener: newVolumes(nil), NegotiationTimeout: 30 * time.Millisecond})
	r := s.dial(t)
	r.receive(18)
	r.ended() // the client says nothing, and is sent away
	eventually(t, "the reason is logged", func() bool { return s.log.has("did not choose an export in time") })
}

// A name that cannot be listed, and more names than one write holds.
func TestListOfManyExports(t *testing.T) {
	devices := map[string]*memory{strings.Repeat("x", maxStringBytes+1): newMemory(0), "null\x00": newMemory(0)}
	m := newMemory(512)
	for i := range 3000 {
		devices[fmt.Sprintf("volume-%04d", i)] = m
	}
	s := serve(t, "unix", Options{Opener: newVolumes(devices)})
	names, err := List(t.Context(), s.uri(""))
	if err != nil || len(names) != 3000 || names[2999] != "volume-2999" {
		t.Fatalf("%d names, error %v", len(names), err)
	}
	if _, ever := m.counts(); ever != 0 {
		t.Error("listing opened a device")
	}
}

// An error text longer than the protocol's strings, cut in the middle of a rune.
func TestLongRefusal(t *testing.T) {
	h := handshake{}
	h.fail(optGo, repErrPolicy, "a\x00"+strings.Repeat("é", maxStringBytes))
	text := h.out[replyHeaderSize:]
	if len(text) != maxStringBytes-1 || !bytes.HasPrefix(text, []byte("aéé")) || badName(string(text)) != "" {
		t.Errorf("%d bytes, %q...", len(text), text[:10])
	}
}
