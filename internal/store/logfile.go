package store

import (
	"encoding/binary"
	"hash/crc32"
	"path"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// The log file has a fixed length in slots of 512 bytes and is written full of zeroes when it is made, so that
// an append changes neither the file's size nor its extents: its fdatasync is one write and one flush.
//
//	slot 0       frame (frame.go), body 448 bytes: log id u64, slots u32, zeroes
//	slot 1 ...   entries, each in whole slots, one behind the other
//	rest         zeroes
//
//	entry:   0  magic "SLOG"
//	         4  crc32c of everything behind it, to the end of the last slot
//	         8  log id, random: entries of an older file in reused blocks never fit
//	        16  number, 1 for the first
//	        24  length of drops, u32
//	        28  length of adds, u32
//	        32  drops, adds: bitmaps of regions. Drops are taken first
//
// An entry is written only after the one before it is on stable storage. So at most the last one is torn by a
// crash, and a damaged entry with a whole one behind it was damaged later. Starting an entry in a slot of its
// own keeps a torn write away from the entries before it.
const (
	logSlot       = 512
	entryHeader   = 32
	entryMagic    = "SLOG"
	smallestLog   = 8         // slots
	largestLog    = 1 << 21   // slots: 1 GiB
	largestChange = 1 << 24   // bytes of one bitmap in an entry
	logName       = "log"     //
	defaultLog    = 512 << 10 // bytes: a thousand appends between two rewritings
)

// logContent is what a log file says.
type logContent struct {
	regions *bitmap.Bitmap
	torn    bool // something was cut off behind the last entry
}

// entrySlots is how many slots an entry takes.
func entrySlots(drops, adds int) int { return (entryHeader + drops + adds + logSlot - 1) / logSlot }

// appendEntry adds an entry to dst, in whole slots.
func appendEntry(dst []byte, log, number uint64, drops, adds []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, entrySlots(len(drops), len(adds))*logSlot)...)
	e := dst[start:]
	copy(e, entryMagic)
	binary.LittleEndian.PutUint64(e[8:], log)
	binary.LittleEndian.PutUint64(e[16:], number)
	binary.LittleEndian.PutUint32(e[24:], uint32(len(drops)))
	binary.LittleEndian.PutUint32(e[28:], uint32(len(adds)))
	copy(e[entryHeader:], drops)
	copy(e[entryHeader+len(drops):], adds)
	binary.LittleEndian.PutUint32(e[4:], crc32.Checksum(e[8:], castagnoli))
	return dst
}

// parseEntry reads the entry at the start of b: its number, bitmaps and slots. ok is false if there is none.
func parseEntry(b []byte, log uint64) (number uint64, drops, adds []byte, slots int, ok bool) {
	if len(b) < logSlot || string(b[:4]) != entryMagic || binary.LittleEndian.Uint64(b[8:]) != log {
		return
	}
	nd, na := binary.LittleEndian.Uint32(b[24:]), binary.LittleEndian.Uint32(b[28:])
	if nd > largestChange || na > largestChange {
		return
	}
	slots = entrySlots(int(nd), int(na))
	if slots*logSlot > len(b) || binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:slots*logSlot], castagnoli) {
		return
	}
	body := b[entryHeader:]
	return binary.LittleEndian.Uint64(b[16:]), body[:nd], body[nd : nd+na], slots, true
}

// encodeLog makes a log file of at least capacity bytes whose only entry holds regions.
func encodeLog(pool volume.PoolID, id volume.ID, log uint64, capacity int, regions *bitmap.Bitmap) []byte {
	adds := regions.Append(nil)
	// Room for as much again, so that a large set is not rewritten at every change.
	slots := max(smallestLog, capacity/logSlot, 2*(1+entrySlots(0, len(adds))))
	body := make([]byte, logSlot-frameHeader)
	binary.LittleEndian.PutUint64(body, log)
	binary.LittleEndian.PutUint32(body[8:], uint32(slots))
	file := make([]byte, 0, slots*logSlot)
	file = append(file, encodeFrame(frameKind{magicLog, logVersion, pool, id}, body)...)
	file = appendEntry(file, log, 1, nil, adds)
	return file[:slots*logSlot]
}

// parseLog reads a log file of a volume of size bytes.
func parseLog(file []byte, pool volume.PoolID, id volume.ID, size uint64) (logContent, error) {
	bad := func(text string) (logContent, error) {
		return logContent{}, fault.New(fault.Corrupt, "check log", text)
	}
	body, err := parseFrame(frameKind{magicLog, logVersion, pool, id}, file[:min(len(file), logSlot)])
	if err != nil {
		return logContent{}, err
	}
	if len(body) != logSlot-frameHeader {
		return bad("its header has a wrong length")
	}
	log, slots := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint32(body[8:])
	if slots < smallestLog || slots > largestLog || len(file) != int(slots)*logSlot {
		return bad("it is cut off or too long")
	}
	content, at, last := logContent{regions: &bitmap.Bitmap{}}, logSlot, uint64(0)
	for at < len(file) {
		number, drops, adds, n, ok := parseEntry(file[at:], log)
		if !ok || number != last+1 {
			break
		}
		removed, err := bitmap.Parse(drops, regionsOf(size))
		if err != nil {
			return bad("an entry names regions outside the volume")
		}
		added, err := bitmap.Parse(adds, regionsOf(size))
		if err != nil {
			return bad("an entry names regions outside the volume")
		}
		removed.Runs(func(from, to uint64) bool { content.regions.Remove(from, to); return true })
		content.regions.Union(added)
		last, at = number, at+n*logSlot
	}
	if last == 0 { // the first entry is on stable storage before the file gets its name
		return bad("its first entry is damaged")
	}
	for rest := at; rest < len(file); rest += logSlot {
		if number, _, _, _, ok := parseEntry(file[rest:], log); ok && number > last {
			return bad("an entry in its middle is damaged")
		}
	}
	content.torn = !allZero(file[at:])
	return content, nil
}

// allZero tells whether b is all zeroes.
func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// logPath is where the log of a replica's folder is.
func logPath(dir string) string { return path.Join(dir, logName) }
