package store

import (
	"encoding/binary"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// The body of a change record: id of the absent pool (16 bytes), first generation (u64), bitmap. That of the
// missing file: the bitmap. Both in units of volume.BlockSize.

const recordHeader = 24

// blocksOf is how many blocks a volume has: the limit of its bitmaps.
func blocksOf(size uint64) uint64 { return (size + volume.BlockSize - 1) / volume.BlockSize }

// regionsOf is how many log regions a volume has.
func regionsOf(size uint64) uint64 { return (size + volume.RegionSize - 1) / volume.RegionSize }

// encodeRecord makes the file of a change record.
func encodeRecord(pool volume.PoolID, id volume.ID, r *volume.ChangeRecord) []byte {
	body := append([]byte(nil), r.Pool[:]...)
	body = binary.LittleEndian.AppendUint64(body, uint64(r.Start))
	body = r.Blocks.Append(body)
	return encodeFrame(frameKind{magicRecord, recordVersion, pool, id}, body)
}

// parseRecord reads the file of a change record of a volume of size bytes.
func parseRecord(file []byte, pool volume.PoolID, id volume.ID, size uint64) (volume.ChangeRecord, error) {
	body, err := parseFrame(frameKind{magicRecord, recordVersion, pool, id}, file)
	if err != nil {
		return volume.ChangeRecord{}, err
	}
	if len(body) < recordHeader {
		return volume.ChangeRecord{}, fault.New(fault.Corrupt, "check record", "it is cut off")
	}
	blocks, err := bitmap.Parse(body[recordHeader:], blocksOf(size))
	if err != nil {
		return volume.ChangeRecord{}, err
	}
	return volume.ChangeRecord{
		Pool:   volume.PoolID(body[:16]),
		Start:  volume.Generation(binary.LittleEndian.Uint64(body[16:])),
		Blocks: blocks,
	}, nil
}

// encodeMissing makes the missing file.
func encodeMissing(pool volume.PoolID, id volume.ID, missing *bitmap.Bitmap) []byte {
	return encodeFrame(frameKind{magicMissing, missingVersion, pool, id}, missing.Append(nil))
}

// parseMissing reads the missing file of a volume of size bytes.
func parseMissing(file []byte, pool volume.PoolID, id volume.ID, size uint64) (*bitmap.Bitmap, error) {
	body, err := parseFrame(frameKind{magicMissing, missingVersion, pool, id}, file)
	if err != nil {
		return nil, err
	}
	return bitmap.Parse(body, blocksOf(size))
}
