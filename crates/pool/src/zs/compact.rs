//! Compaction of one class: objects move from its least used zspage to its fullest.

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::Zs;
use super::class::{FULLEST_WITH_ROOM, LEAST_USED, State, ZspageId, Zspages};
use super::geometry::Geometry;
use super::objects::place_of;

impl<S: PageSource, P: Park> Zs<S, P> {
    /// Empties zspages of the class until no more can be emptied. The lock is released between any
    /// two. Returns the pages given back.
    pub(super) fn compact_class(&self, class: usize) -> usize {
        let geometry = self.classes()[class].geometry;
        let mut given_pages = 0;
        loop {
            let mut state = self.classes()[class].state.lock();
            let Some(emptied) = self.empty_one(&mut state, geometry) else { return given_pages };
            state.allocated -= geometry.objects;
            drop(state);
            self.give_back(emptied, geometry);
            given_pages += geometry.pages;
        }
    }

    /// Moves the objects of the least used zspage to the fullest ones. Returns the zspage, in no
    /// list, if that emptied it; `None` if compaction can do no more.
    fn empty_one(&self, state: &mut State, geometry: Geometry) -> Option<ZspageId> {
        if geometry.objects == 1 || state.freeable_zspages(geometry) == 0 {
            return None;
        }
        let zspages = self.zspages();
        let source_group = (LEAST_USED..=FULLEST_WITH_ROOM).find(|&g| state.counts[g] > 0)?;
        let source = state.head(source_group)?;
        // Out of its list it cannot be chosen as a target.
        state.remove(&zspages, source, source_group);
        while zspages.get(source).in_use() > 0 {
            let group = (LEAST_USED..=FULLEST_WITH_ROOM).rev().find(|&g| state.counts[g] > 0);
            let target = group.and_then(|group| Some((group, state.head(group)?)));
            let Some((group, target)) = target else { break };
            let moved = self.migrate(state, geometry, source, target);
            let now = State::group_of(zspages.get(target).in_use(), geometry.objects);
            state.regroup(&zspages, target, group, now);
            if moved == 0 {
                break;
            }
        }
        if zspages.get(source).in_use() == 0 {
            return Some(source);
        }
        let now = State::group_of(zspages.get(source).in_use(), geometry.objects);
        state.insert(&zspages, source, now);
        None
    }

    /// Moves what can be moved from one zspage to another until the latter is full. An object that
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
