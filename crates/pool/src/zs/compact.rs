//! Compaction of one class: objects move from its least used zspage to its fullest.

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::class::{FULLEST_WITH_ROOM, LEAST_USED, State, ZspageId, Zspages};
use super::geometry::Geometry;
use super::objects::place_of;
use super::{Class, Zs};

impl<S: PageSource, P: Park> Zs<S, P> {
    /// Empties a zspage of the class and gives it back. Returns its pages; `None` if no more can be
    /// emptied.
    pub(super) fn free_zspage(&self, class: usize) -> Option<usize> {
        let Class { geometry, state } = &self.classes()[class];
        let mut state = state.lock();
        let emptied = self.empty_one(&mut state, *geometry)?;
        state.allocated -= geometry.objects;
        drop(state);
        self.give_back(emptied, *geometry);
        Some(geometry.pages)
    }

    /// Empties the least used zspage that it can. A zspage with an object that is being read cannot
    /// be emptied, and is passed by. Returns the zspage, in no list; `None` if compaction can do no
    /// more.
    fn empty_one(&self, state: &mut State, geometry: Geometry) -> Option<ZspageId> {
        if geometry.objects == 1 || state.freeable_zspages(geometry) == 0 {
            return None;
        }
        let zspages = self.zspages();
        // The zspages passed by, linked, since no list has them.
        let mut passed_by = None;
        let emptied = loop {
            let mut groups = LEAST_USED..=FULLEST_WITH_ROOM;
            let source = groups.find_map(|group| Some((group, state.head(group)?)));
            let Some((group, source)) = source else { break None };
            // Out of its list the zspage cannot be chosen as a target.
            state.remove(&zspages, source, group);
            self.empty(state, geometry, source);
            if zspages.get(source).in_use() == 0 {
                break Some(source);
            }
            zspages.get(source).set_next(passed_by);
            passed_by = Some(source);
        };
        while let Some(id) = passed_by {
            passed_by = zspages.get(id).next();
            let group = State::group_of(zspages.get(id).in_use(), geometry.objects);
            state.insert(&zspages, id, group);
        }
        emptied
    }

    /// Moves the objects of a zspage that is in no list to the fullest ones that have room.
    fn empty(&self, state: &mut State, geometry: Geometry, source: ZspageId) {
        let zspages = self.zspages();
        while zspages.get(source).in_use() > 0 {
            let mut groups = (LEAST_USED..=FULLEST_WITH_ROOM).rev();
            let target = groups.find_map(|group| Some((group, state.head(group)?)));
            let Some((group, target)) = target else { return };
            let moved = self.migrate(state, geometry, source, target);
            let now = State::group_of(zspages.get(target).in_use(), geometry.objects);
            state.regroup(&zspages, target, group, now);
            if moved == 0 {
                return;
            }
        }
    }

    /// Moves what can be moved from one zspage to another until the other is full. An object that
    /// is being read or freed stays.
    fn migrate(
        &self,
        state: &mut State,
        geometry: Geometry,
        from: ZspageId,
        to: ZspageId,
    ) -> usize {
        let zspages: Zspages<'_> = self.zspages();
        let (from, to_id, to) = (zspages.get(from), to, zspages.get(to));
        let (from_span, to_span) = (zspages.span(from, geometry), zspages.span(to, geometry));
        let mut moved = 0;
        for object in 0..geometry.objects {
            if to.in_use() == geometry.objects {
                break;
            }
            let Some(cell) = State::cell_of(from_span, geometry, object) else { continue };
            let pin = self.cell(cell);
            if pin.try_pin().is_none() {
                continue;
            }
            let target = state.take_from(to, to_span, geometry, cell);
            let size = geometry.size_bytes;
            to_span.copy_from(target as usize * size, from_span, object * size, size);
            state.put_to(from, from_span, geometry, object as u16);
            pin.move_to(place_of(to_id, target));
            moved += 1;
        }
        state.moved += moved as u64;
        moved
    }
}
