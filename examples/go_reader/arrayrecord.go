package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/highwayhash"
)

// The container of an ArrayRecord file, as docs/format.md describes it byte by byte.

const (
	blockSize       = 1 << 16
	blockHeaderSize = 24
	chunkHeaderSize = 40
	postscriptMagic = 0x71930e704fdae05e
	maxChunkBytes   = 1 << 31 // of records; what says that it has more is damaged
)

var (
	hashKey     = []byte("Riegeli/records\nRiegeli/records\n")
	zstdDecoder = newZstdDecoder()
)

func newZstdDecoder() *zstd.Decoder {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(err) // the option is wrong
	}
	return decoder
}

// chunk is what stands in the index: where a chunk begins and how many records it has.
type chunk struct {
	offset     uint64
	numRecords uint64
}

// arrayRecord reads one file. The chunks of the index hold all records, in their order.
type arrayRecord struct {
	file   *os.File
	size   int64
	chunks []chunk
}

// openArrayRecord reads the index: the last 64 KiB say where it is.
func openArrayRecord(path string) (*arrayRecord, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	reader := &arrayRecord{file: file, size: info.Size()}
	if err := reader.readIndex(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return reader, nil
}

func (reader *arrayRecord) readIndex() error {
	if reader.size < 2*blockSize || reader.size%blockSize != 0 {
		return fmt.Errorf("%d bytes are no whole number of 64 KiB blocks: not ArrayRecord, or cut", reader.size)
	}
	copies, err := reader.readChunk(uint64(reader.size - blockSize))
	if err != nil {
		return fmt.Errorf("the last block: %w", err)
	}
	if len(copies) == 0 {
		return errors.New("the last block does not say where the index is")
	}
	postscript, err := parseMessage(copies[0])
	if err != nil {
		return err
	}
	if postscript.number(2) != postscriptMagic {
		return errors.New("the last block does not end an ArrayRecord file")
	}
	index, err := reader.readChunk(postscript.number(1))
	if err != nil {
		return fmt.Errorf("the index: %w", err)
	}
	if len(index) == 0 {
		return errors.New("the index is empty")
	}
	head, err := parseMessage(index[0])
	if err != nil {
		return err
	}
	about, err := parseMessage(head.bytes(1))
	if err != nil {
		return err
	}
	if version := about.number(1); version != 1 {
		return fmt.Errorf("version %d of ArrayRecord; this reader knows 1", version)
	}
	for _, record := range index[1:] {
		entry, err := parseMessage(record)
		if err != nil {
			return err
		}
		reader.chunks = append(reader.chunks, chunk{entry.number(1), entry.number(3)})
	}
	if uint64(len(reader.chunks)) != about.number(2) {
		return fmt.Errorf("the index has %d chunks and says that they are %d", len(reader.chunks), about.number(2))
	}
	return nil
}

// each calls f with every record, one chunk in memory at a time.
func (reader *arrayRecord) each(f func(position int, record []byte) error) error {
	position := 0
	for _, chunk := range reader.chunks {
		records, err := reader.readChunk(chunk.offset)
		if err != nil {
			return fmt.Errorf("chunk at %d: %w", chunk.offset, err)
		}
		if uint64(len(records)) != chunk.numRecords {
			return fmt.Errorf("chunk at %d: %d records, the index says %d", chunk.offset, len(records), chunk.numRecords)
		}
		for _, record := range records {
			if err := f(position, record); err != nil {
				return fmt.Errorf("record %d: %w", position, err)
			}
			position++
		}
	}
	return nil
}

// readChunk returns the records of the simple chunk that begins at an offset.
func (reader *arrayRecord) readChunk(offset uint64) ([][]byte, error) {
	if offset >= uint64(reader.size) {
		return nil, fmt.Errorf("offset %d is not in the file, which has %d bytes", offset, reader.size)
	}
	from := &unblocked{file: reader.file, at: int64(offset)}
	header := make([]byte, chunkHeaderSize)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(header) != highwayhash.Sum64(header[8:], hashKey) {
		return nil, errors.New("the header is damaged, or none begins here")
	}
	dataSize := binary.LittleEndian.Uint64(header[8:])
	typeAndCount := binary.LittleEndian.Uint64(header[24:])
	kind, numRecords := byte(typeAndCount), typeAndCount>>8
	decodedSize := binary.LittleEndian.Uint64(header[32:])
	if kind == 't' {
		return nil, errors.New("a transposed chunk; this reader knows simple ones, written without `transpose`")
	}
	if kind != 'r' {
		return nil, fmt.Errorf("a chunk of type %q has no records", kind)
	}
	if dataSize > uint64(reader.size) || decodedSize > maxChunkBytes || numRecords > maxChunkBytes {
		return nil, fmt.Errorf("%d bytes of data, %d records of %d bytes", dataSize, numRecords, decodedSize)
	}
	data := make([]byte, dataSize)
	if _, err := io.ReadFull(from, data); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(header[16:]) != highwayhash.Sum64(data, hashKey) {
		return nil, errors.New("the data are damaged")
	}
	return split(data, numRecords, decodedSize)
}

// split returns the records of a simple chunk's data.
func split(data []byte, numRecords, decodedSize uint64) ([][]byte, error) {
	if len(data) == 0 {
		return nil, errors.New("no data")
	}
	compression := data[0]
	sizesSize, used := binary.Uvarint(data[1:])
	rest := data[1+max(used, 0):]
	if used <= 0 || sizesSize > uint64(len(rest)) {
		return nil, errors.New("no sizes")
	}
	sizes, err := decompress(compression, rest[:sizesSize])
	if err != nil {
		return nil, fmt.Errorf("sizes: %w", err)
	}
	values, err := decompress(compression, rest[sizesSize:])
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	if uint64(len(values)) != decodedSize {
		return nil, fmt.Errorf("%d bytes of records, the header says %d", len(values), decodedSize)
	}
	var records [][]byte
	for ; numRecords > 0; numRecords-- {
		size, used := binary.Uvarint(sizes)
		if used <= 0 || size > uint64(len(values)) {
			return nil, errors.New("the sizes are not those of the records")
		}
		sizes = sizes[used:]
		records = append(records, values[:size])
		values = values[size:]
	}
	return records, nil
}

// decompress takes the size that stands before compressed bytes off, and undoes the compression.
func decompress(compression byte, data []byte) ([]byte, error) {
	if compression == 0 {
		return data, nil
	}
	size, used := binary.Uvarint(data)
	if used <= 0 || size > maxChunkBytes {
		return nil, errors.New("no size before compressed bytes")
	}
	data = data[used:]
	var plain []byte
	var err error
	switch compression {
	case 'z':
		plain, err = zstdDecoder.DecodeAll(data, make([]byte, 0, size))
	case 'b':
		plain, err = io.ReadAll(io.LimitReader(brotli.NewReader(bytes.NewReader(data)), int64(size)+1))
	case 's':
		plain, err = snappy.Decode(nil, data)
	default:
		err = fmt.Errorf("compression %q; this reader knows none, zstd, brotli and snappy", compression)
	}
	if err == nil && uint64(len(plain)) != size {
		err = fmt.Errorf("%d bytes after decompression, not %d", len(plain), size)
	}
	return plain, err
}

// unblocked reads a file on from a place, and leaves out the block header at every 64 KiB.
type unblocked struct {
	file *os.File
	at   int64
}

func (from *unblocked) Read(buffer []byte) (int, error) {
	if inBlock := from.at % blockSize; inBlock < blockHeaderSize {
		if inBlock > 0 {
			return 0, fmt.Errorf("offset %d is within a block header", from.at)
		}
		from.at += blockHeaderSize
	}
	left := blockSize - from.at%blockSize
	n, err := from.file.ReadAt(buffer[:min(int64(len(buffer)), left)], from.at)
	from.at += int64(n)
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}
